"use strict";
// Refreshes the panels, moves through time, copies. Every link and form works without it.
const html = document.documentElement;
html.classList.add("with-script");
const $ = (selector) => document.querySelector(selector);
const toast = $(".toast");
const EVERY_MS = 2000;

function utc(ms) {
  return new Date(ms).toISOString().replace("T", " ").replace("Z", " UTC");
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
  const code = button.previousElementSibling;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

document.addEventListener("keydown", (event) => {
  const find = $(".find input");
  if (event.key === "/" && find && !event.target.closest("input, textarea")) {
    event.preventDefault();
    find.focus();
  }
});

// --- The page of a server ---

function replace(text) {
  const there = new DOMParser().parseFromString(text, "text/html");
  for (const old of document.querySelectorAll("[data-live]")) {
    const fresh = there.getElementById(old.id);
    if (!fresh || old.innerHTML === fresh.innerHTML) continue;
    const focus = old.contains(document.activeElement) ? document.activeElement : null;
    if (focus && focus.matches("input") && focus.id !== "slider") continue;
    const open = [...old.querySelectorAll("details[id][open]")].map((one) => one.id);
    for (const one of fresh.querySelectorAll("details[id]")) one.open = open.includes(one.id);
    const scrolled = [...old.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    const href = focus && focus.closest("a[href]") && focus.closest("a[href]").getAttribute("href");
    if (focus && focus.id === "slider") {
      // The slider itself stays: it may be held by a mouse.
      fresh.querySelector("#slider").replaceWith(focus);
    }
    old.replaceChildren(...fresh.childNodes);
    old.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = scrolled[i] || 0; });
    if (focus && focus.id === "slider") focus.focus();
    else if (href) {
      const again = [...old.querySelectorAll("a")].find((one) => one.getAttribute("href") === href);
      if (again) again.focus({preventScroll: true});
    }
  }
  document.body.dataset.refresh = there.body.dataset.refresh || "";
}

async function load(url) {
  try {
    const reply = await fetch(url, {cache: "no-store"});
    const text = await reply.text();
    if (reply.ok) {
      replace(text);
      toast.textContent = "";
      return;
    }
    const there = new DOMParser().parseFromString(text, "text/html");
    const message = there.getElementById("message");
    toast.textContent = "Not refreshed: " + (message ? message.textContent : reply.status);
  } catch {
    toast.textContent = "Not refreshed: txnlog show has ended. Start it again for a new address.";
  }
}

async function refresh() {
  const busy = document.activeElement && document.activeElement.matches("main input");
  if (!document.hidden && !busy && document.body.dataset.refresh === "live") {
    await load(location.href);
  }
  setTimeout(refresh, EVERY_MS);
}

// The links of the menu and the rest of the frame follow a move through time.
function follow(at) {
  for (const link of document.querySelectorAll("header a[href]")) {
    const url = new URL(link.href);
    if (at) url.searchParams.set("at", at); else url.searchParams.delete("at");
    link.href = url;
  }
}

function move(slider) {
  const url = new URL(location.href);
  const isNow = Number(slider.value) >= Number(slider.max);
  if (isNow) url.searchParams.delete("at"); else url.searchParams.set("at", slider.value);
  history.replaceState(null, "", url);
  follow(isNow ? "" : slider.value);
  load(url);
}

// --- A file ---

async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function show() {
  const name = decodeURIComponent(location.hash.slice(1)) || "overview";
  const pages = [...document.querySelectorAll(".page")];
  if (!pages.some((one) => one.id === name) && document.getElementById(name)) return;
  const page = pages.find((one) => one.id === name) || document.getElementById("gone");
  for (const one of pages) one.classList.toggle("shown", one === page);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === "#" + name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

let wanted = -1;
async function pick(moments, slider) {
  const index = wanted = Number(slider.value);
  const text = utc(moments[index].at);
  $(".asof output").textContent = text;
  slider.setAttribute("aria-valuetext", text);
  const there = new DOMParser().parseFromString(await unpacked(moments[index].pages), "text/html");
  if (index !== wanted) return;
  $("#pages").replaceChildren(...there.body.childNodes);
  show();
}

// --- Start ---

const data = $("#moments");
if (data) {
  const moments = JSON.parse(data.textContent);
  addEventListener("hashchange", () => { show(); scrollTo(0, 0); });
  $("#slider").addEventListener("input", (event) => pick(moments, event.target));
  show();
} else if (document.body.dataset.refresh !== undefined) {
  document.addEventListener("input", (event) => {
    if (event.target.id !== "slider") return;
    event.target.setAttribute("aria-valuetext", utc(Number(event.target.value)));
    $(".time input[name=time]").value = utc(Number(event.target.value)).slice(0, 19);
  });
  document.addEventListener("change", (event) => {
    if (event.target.id === "slider") move(event.target);
  });
  setTimeout(refresh, EVERY_MS);
}
