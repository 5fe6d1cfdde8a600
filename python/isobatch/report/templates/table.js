"use strict";
(async () => {
  const place = document.getElementById("rows");
  if (!place || !("DecompressionStream" in window)) return;
  const WINDOW = 50;
  const unpack = async (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  };
  const data = JSON.parse(document.getElementById("rows-data").textContent);
  const columns = await Promise.all(data.columns.map(async (it) => ({ ...it, ...(await unpack(it.packed)) })));
  for (const it of columns) {
    // In the order of the values: sorting rows is then comparing whole numbers; what is not known comes last.
    const order = [...it.values.keys()].sort((a, b) => {
      const x = it.values[a], y = it.values[b];
      if (x === null || y === null) return (x === null) - (y === null);
      return typeof x === "number" ? x - y : x < y ? -1 : x > y ? 1 : 0;
    });
    it.rank = new Int32Array(order.length);
    order.forEach((at, rank) => { it.rank[at] = it.values[at] === null ? -1 : rank; });
    it.at = Int32Array.from(it.at);
  }
  const count = columns[0].at.length;
  const write = (value, kind) => {
    if (value === null) return "";
    if (kind === "count") return value.toLocaleString("en-US");
    if (kind === "figure") {
      const short = Number(value.toPrecision(3));
      return short !== 0 && Math.abs(short) < 1e-4 ? short.toExponential() : short.toLocaleString("en-US", { maximumSignificantDigits: 3 });
    }
    if (kind === "real") {
      const short = Number(value.toPrecision(6));
      return short !== 0 && Math.abs(short) < 1e-4 ? short.toExponential().replace("e+", "e") : String(short);
    }
    return String(value);
  };
  const find = document.getElementById("rows-find"), status = document.getElementById("rows-status");
  const back = document.getElementById("rows-back"), on = document.getElementById("rows-on"), said = document.getElementById("rows-said");
  const body = place.querySelector("tbody"), heads = [...place.querySelectorAll("thead th")];
  let shown = Array.from({ length: count }, (_, row) => row), start = 0, sorted = -1, up = true;
  const show = () => {
    body.replaceChildren(...shown.slice(start, start + WINDOW).map((row) => {
      const line = document.createElement("tr");
      for (const it of columns) {
        const cell = document.createElement("td"), text = write(it.values[it.at[row]], it.kind);
        const inner = document.createElement(it.kind === "status" ? "span" : "bdi");
        inner.textContent = text;
        if (it.kind === "status") inner.className = `status ${text}`; else cell.className = it.kind;
        if (text.length > 40) cell.title = text;
        cell.append(inner);
        line.append(cell);
      }
      return line;
    }));
    back.disabled = start === 0;
    on.disabled = start + WINDOW >= shown.length;
    const number = (n) => n.toLocaleString("en-US");
    const last = Math.min(start + WINDOW, shown.length);
    said.textContent = shown.length ? `rows ${number(start + 1)}–${number(last)} of ${number(shown.length)}` : "no row has that";
  };
  const select = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    // Each value is looked at once, not each row.
    const hits = words.map((word) => columns.map((it) => it.values.map((value) => write(value, it.kind).toLowerCase().includes(word))));
    const wanted = columns.find((it) => it.kind === "status");
    shown = [];
    for (let row = 0; row < count; row++) {
      if (status.value && wanted && wanted.values[wanted.at[row]] !== status.value) continue;
      if (hits.every((hit) => columns.some((it, number) => hit[number][it.at[row]]))) shown.push(row);
    }
    if (sorted >= 0) {
      const { rank, at } = columns[sorted];
      shown.sort((a, b) => {
        const x = rank[at[a]], y = rank[at[b]];
        return x === y ? a - b : x < 0 ? 1 : y < 0 ? -1 : up ? x - y : y - x;
      });
    }
    start = 0;
    show();
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
  back.addEventListener("click", () => { start = Math.max(0, start - WINDOW); show(); });
  on.addEventListener("click", () => { start += WINDOW; show(); });
  const form = place.querySelector("form");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  show();
  place.dataset.ready = "yes";
})();
