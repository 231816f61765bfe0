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
  // What is left of a time counts down, in the words and tones that the server uses.
  function left(ms) {
    const s = Math.floor(ms / 1000);
    if (ms <= 0) return "expired";
    if (s < 60) return `${s} s left`;
    if (s < 600) return `${Math.floor(s / 60)} min ${s % 60} s left`;
    if (s < 3600) return `${Math.floor(s / 60)} min left`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min left`;
    const days = Math.floor(s / 86400);
    if (days >= 365) return "over a year left";
    return `${days} day${days === 1 ? "" : "s"} left`;
  }
  function countDown() {
    const now = Date.now() + ahead;
    for (const element of document.querySelectorAll("[data-expires]")) {
      const ms = Number(element.dataset.expires) - now;
      const text = left(ms);
      const words = element.lastElementChild;
      if (words.textContent === text) continue;
      words.textContent = text;
      element.className = `state ${ms < 180000 ? "bad" : ms < 900000 ? "wait" : "off"}`;
      if (ms <= 0) document.dispatchEvent(new CustomEvent("expired", { detail: element }));
    }
    for (const element of document.querySelectorAll("[data-local-time]:empty")) {
      element.textContent = `${new Date(Number(element.dataset.localTime)).toLocaleString()} here`;
      element.hidden = false;
    }
  }
  setInterval(() => {
    if (document.visibilityState !== "visible") return;
    tick();
    countDown();
  }, 1000);

  // What is typed survives a lost session: kept for this tab until it is sent.
  function keptName(field) {
    return `typed ${location.pathname} ${field.form.getAttribute("action")} ${field.name}`;
  }
  function restore() {
    for (const field of document.querySelectorAll("[data-keep] :is(textarea, input[type=text])")) {
      const kept = sessionStorage.getItem(keptName(field));
      if (kept && !field.value) {
        field.value = kept;
        const around = field.closest("details");
        if (around) around.open = true;
      }
    }
  }
  document.addEventListener("input", (event) => {
    const field = event.target;
    if (!field.form?.matches("[data-keep]") || !field.matches("textarea, input[type=text]")) return;
    sessionStorage.setItem(keptName(field), field.value);
  });
  function forget(form) {
    for (const field of form.querySelectorAll("textarea, input[type=text]")) sessionStorage.removeItem(keptName(field));
  }
  document.addEventListener("htmx:afterRequest", (event) => {
    const form = event.detail.elt;
    if (form.matches?.("[data-keep]") && event.detail.successful && !event.detail.xhr.getResponseHeader("HX-Redirect")) forget(form);
  });

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
    htmx.ajax("GET", region.dataset.refresh, { target: region, swap: "outerHTML", headers: { "X-Background": "1" } });
  }, every);

  document.addEventListener("htmx:afterSwap", () => {
    keepTime();
    tick();
    countDown();
  });
  keepTime();
  tick();
  countDown();
  restore();
})();
