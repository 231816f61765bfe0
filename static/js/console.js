// Small things that only a browser can do. Everything works without this file.
(() => {
  "use strict";

  // Relative times tick, and their title gains the local time.
  const units = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
  function relative(moment, now) {
    const seconds = Math.abs(now - moment) / 1000;
    if (seconds < 5) return "just now";
    const [length, unit] = units.find(([length]) => seconds >= length);
    const number = Math.floor(seconds / length);
    const text = `${number} ${unit}${number === 1 ? "" : "s"}`;
    return moment < now ? `${text} ago` : `in ${text}`;
  }
  // Where the server's clock decides, its time is in the page: the difference to this machine's is kept.
  let ahead = 0;
  function keepTime() {
    const given = document.querySelector("[data-now]")?.dataset.now;
    ahead = given ? Number(given) - Date.now() : 0;
  }
  function tick(root = document) {
    const now = Date.now() + ahead;
    for (const element of root.querySelectorAll("time[datetime]")) {
      const moment = Date.parse(element.dateTime);
      const text = relative(moment, now);
      if (element.textContent !== text) element.textContent = text;
      if (!element.dataset.local) {
        element.dataset.local = "yes";
        element.title = `${new Date(moment).toLocaleString()} here, ${element.title}`;
      }
    }
  }
  setInterval(() => document.visibilityState === "visible" && tick(), 1000);

  // A click on a hash copies the whole of it.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {
      window.getSelection().selectAllChildren(button);
      return;
    }
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1200);
  });

  // The token of this moment, not the one the page was made with.
  document.addEventListener("htmx:configRequest", (event) => {
    const cookie = document.cookie.split("; ").find((text) => text.startsWith("csrftoken="));
    if (event.detail.verb === "get" || !cookie) return;
    event.detail.parameters.delete("csrfmiddlewaretoken");
    event.detail.headers["X-CSRFToken"] = cookie.slice("csrftoken=".length);
  });

  // A filter that says nothing stays out of the address.
  document.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.verb !== "get" || !event.target.matches(".filters")) return;
    for (const [name, value] of [...event.detail.parameters.entries()]) {
      if (value === "") event.detail.parameters.delete(name);
    }
  });

  // Live lists: asked again while somebody looks, and never under a hand that types, selects or has something open.
  const every = 10000;
  function busy(region) {
    const selection = window.getSelection();
    return (
      document.visibilityState !== "visible" ||
      (selection && !selection.isCollapsed) ||
      document.activeElement?.matches("input, select, textarea") ||
      region.contains(document.activeElement) ||
      region.querySelector("details[open]")
    );
  }
  setInterval(() => {
    const region = document.querySelector("[data-refresh]:not([data-refresh=''])");
    if (!region || busy(region)) return;
    htmx.ajax("GET", region.dataset.refresh, { target: region, swap: "outerHTML" });
  }, every);

  document.addEventListener("htmx:afterSwap", () => {
    keepTime();
    tick();
  });
  keepTime();
  tick();
})();
