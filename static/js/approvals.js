// The inbox and an approval's page: news, the number that waits, and keys. Everything works without this file.
(() => {
  "use strict";

  const page = document.title.replace(/^\(\d+\+?\) /, "");
  const icon = document.querySelector("link[rel=icon]");
  const plainIcon = icon?.href;

  // The title and the icon show how many wait.
  function announce(number, more) {
    document.title = number ? `(${number}${more ? "+" : ""}) ${page}` : page;
    if (!icon) return;
    if (!number) {
      icon.href = plainIcon;
      return;
    }
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 32;
    const draw = canvas.getContext("2d");
    draw.fillStyle = "#a8202a";
    draw.beginPath();
    draw.roundRect(0, 0, 32, 32, 8);
    draw.fill();
    draw.fillStyle = "#fff";
    draw.font = `bold ${number > 9 ? 17 : 22}px sans-serif`;
    draw.textAlign = "center";
    draw.textBaseline = "middle";
    draw.fillText(more || number > 99 ? "99+" : String(number), 16, 17, 30);
    icon.href = canvas.toDataURL("image/png");
  }

  const inbox = () => document.querySelector("#inbox[data-waiting]");
  const items = () => [...document.querySelectorAll(".item")];

  // What is new is said above the list; nothing that somebody is about to click moves.
  const every = 5000;
  let asking = false;
  async function ask() {
    const region = inbox();
    if (!region || asking || document.visibilityState !== "visible") return;
    asking = true;
    try {
      const response = await fetch(region.dataset.waiting, {
        headers: { "If-None-Match": `"${region.dataset.tag}"`, "HX-Request": "true", "HX-Current-URL": location.href, "X-Background": "1" },
        cache: "no-store",
      });
      const elsewhere = response.headers.get("HX-Redirect");
      if (elsewhere) location.assign(elsewhere);
      else if (response.status === 200) tell(region, response.headers.get("ETag"), await response.json());
    } catch {
      // The network is away for a moment: asked again with the next round.
    } finally {
      asking = false;
    }
  }
  function tell(region, tag, found) {
    region.dataset.tag = (tag || "").replaceAll('"', "").replace("W/", "");
    announce(found.ids.length, found.more);
    const here = new Set(items().map((item) => item.dataset.id));
    const fresh = found.ids.slice(0, 50).filter((id) => !here.has(id)).length;
    const news = region.querySelector("[data-news]");
    news.hidden = !fresh;
    if (fresh) {
      const link = document.createElement("a");
      link.href = location.href;
      link.textContent = "Show";
      news.replaceChildren(`${fresh} more approval${fresh === 1 ? " waits" : "s wait"}. `, link);
    }
    const still = new Set(found.ids);
    if (found.more) return;
    for (const item of items()) {
      if (!still.has(item.dataset.id) && !item.matches(".answered")) settled(item, "It doesn't wait any more.");
    }
  }
  function settled(item, text) {
    if (item.querySelector("[data-settled]")) return;
    item.classList.add("gone");
    const note = document.createElement("p");
    note.className = "sub";
    note.dataset.settled = "yes";
    note.textContent = text;
    item.querySelector(".what")?.append(note);
    for (const control of item.querySelectorAll("button, input")) control.disabled = true;
    item.querySelector("details")?.removeAttribute("open");
  }
  document.addEventListener("expired", (event) => {
    const item = event.detail.closest(".item");
    if (item) settled(item, "Its time is up.");
    else for (const button of document.querySelectorAll("#decide button")) button.disabled = true;
  });
  setInterval(ask, every);
  document.addEventListener("visibilitychange", ask);
  const counted = document.title.match(/^\((\d+)(\+?)\) /);
  if (counted) announce(Number(counted[1]), counted[2] === "+");

  // A page that comes back out of memory may show what was decided since.
  window.addEventListener("pageshow", (event) => event.persisted && location.reload());

  // Keys. They can be turned off, and those that decide work only on the item that has the focus.
  const dialog = document.getElementById("keys");
  const wanted = document.getElementById("keys-on");
  const on = () => localStorage.getItem("keys") !== "off";
  if (wanted) {
    wanted.checked = on();
    wanted.addEventListener("change", () => localStorage.setItem("keys", wanted.checked ? "on" : "off"));
  }
  const hint = document.querySelector("[data-keys]");
  if (hint) hint.hidden = false;
  function current() {
    return document.activeElement?.closest(".item") || document.getElementById("decide");
  }
  function move(step) {
    const all = items();
    const index = all.indexOf(current());
    const next = index < 0 ? (step > 0 ? 0 : all.length - 1) : index + step;
    all[next]?.querySelector("h2 a")?.focus();
  }
  const keys = {
    j: () => move(1),
    k: () => move(-1),
    a: () => {
      const place = current();
      const button = place?.querySelector("[data-approve]:not(:disabled)");
      // In the list the focus says which one is meant; on an approval's own page Enter does, on the button.
      if (place?.matches(".item")) button?.click();
      else button?.focus();
    },
    d: () => {
      const place = current();
      const details = place?.querySelector("details.deny");
      if (details) details.open = true;
      (details?.querySelector("input[type=text]") || place?.querySelector("textarea"))?.focus();
    },
    "/": () => document.getElementById("filter-q")?.focus(),
    "?": () => dialog?.showModal(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || dialog?.open) return;
    if (event.target.matches("input:not([type=checkbox]), textarea, select")) return;
    const act = keys[event.key];
    if (!act || (!on() && event.key !== "?")) return;
    event.preventDefault();
    act();
  });
})();
