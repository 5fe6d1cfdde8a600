"use strict";
(() => {
  const place = document.getElementById("rows");
  if (!place) return;
  const body = place.querySelector("tbody"), heads = [...place.querySelectorAll("thead th")];
  const rows = [...body.rows].map((line) => {
    const texts = [...line.cells].map((cell) => cell.textContent);
    // A long text is cut where it is shown.
    [...line.cells].forEach((cell, at) => { if (texts[at].length > 40) cell.title = texts[at]; });
    return { line, texts, lower: texts.join("\n").toLowerCase() };
  });
  const find = document.getElementById("rows-find"), status = document.getElementById("rows-status");
  const shown = document.getElementById("rows-shown");
  const statuses = heads.findIndex((head) => head.textContent === "status");
  let sorted = -1, up = true;
  const select = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter(({ texts, lower }) =>
      (!status.value || texts[statuses] === status.value) && words.every((word) => lower.includes(word)));
    if (sorted >= 0) {
      const number = heads[sorted].classList.contains("number");
      const key = (row) => number ? Number(row.texts[sorted].replaceAll(",", "")) : row.texts[sorted];
      // What is not known comes last, up or down.
      found.sort((a, b) => {
        if (!a.texts[sorted] || !b.texts[sorted]) return !a.texts[sorted] - !b.texts[sorted];
        const x = key(a), y = key(b);
        return x === y ? 0 : (x < y) === up ? -1 : 1;
      });
    }
    body.replaceChildren(...found.map((row) => row.line));
    shown.textContent = found.length ? `${found.length.toLocaleString("en-US")} of ${rows.length.toLocaleString("en-US")} rows` : "no row has that";
  };
  heads.forEach((head, number) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      up = sorted === number ? !up : true;
      sorted = number;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      select();
    });
  });
  find.addEventListener("input", select);
  status.addEventListener("change", select);
  const form = place.querySelector("form");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  select();
  place.dataset.ready = "yes";
})();
