// Makes the page more convenient. Everything works without it: problems are then shown on preview and save.
"use strict";

const WAIT = 250; // milliseconds without a key before a text is checked

function item(className, text, lead) {
  const element = document.createElement("li");
  element.className = className;
  if (lead) {
    const strong = document.createElement("b");
    strong.textContent = lead;
    element.append(strong, " ");
  }
  // What a message quotes stands between backticks.
  text.split("`").forEach((part, place) => {
    if (place % 2) {
      const code = document.createElement("code");
      code.textContent = part;
      element.append(code);
    } else {
      element.append(part);
    }
  });
  return element;
}

function show(found) {
  const list = document.createElement("ul");
  list.className = "problems";
  list.append(
    ...found.errors.map((text) => item("error", text, "Cannot be saved:")),
    ...found.advice.map((text) => item("advice", text)),
  );
  if (!list.childElementCount) list.append(item("fine", "None found."));
  const place = document.getElementById("problems");
  // The same again would be read out again.
  if (place.textContent.trim() !== list.textContent.trim()) place.replaceChildren(list);
  document.getElementById("tokens").textContent = found.tokens;
  document.getElementById("description-length").textContent = found.description_length;
}

function watch(area) {
  let timer = 0;
  let asked = 0;
  const check = async () => {
    const number = ++asked;
    try {
      const answer = await fetch(area.dataset.check, {
        method: "POST",
        headers: { "Content-Type": "text/plain; charset=utf-8", "X-CSRF-Token": area.dataset.token },
        body: area.value,
        credentials: "same-origin",
      });
      // An answer that was overtaken says nothing about the text as it is now.
      if (answer.ok && number === asked) show(await answer.json());
    } catch {
      // Not reachable for the moment: the server checks again when the text is saved.
    }
  };
  area.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(check, WAIT);
  });
}

function guard(form) {
  const written = () => [...form.querySelectorAll("textarea, input[type=text]")].map((area) => area.value).join("\n");
  const before = written();
  let isLeaving = false;
  form.addEventListener("submit", () => {
    isLeaving = true;
  });
  window.addEventListener("beforeunload", (event) => {
    if (!isLeaving && written() !== before) event.preventDefault();
  });
  form.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "s") {
      event.preventDefault();
      form.requestSubmit(form.querySelector("button.primary"));
    }
  });
}

for (const area of document.querySelectorAll("textarea[data-check]")) watch(area);
for (const form of document.querySelectorAll("form[data-editor]")) guard(form);

document.addEventListener("keydown", (event) => {
  const search = document.querySelector("[data-search]");
  const isTyping = event.target instanceof Element && event.target.closest("input, textarea, select");
  if (search && event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
  }
});

document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.removeAttribute("open");
  }
});
