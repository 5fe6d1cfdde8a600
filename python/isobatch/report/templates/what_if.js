"use strict";
// The page's data has every plan; its texts are numbered, since most of them are many plans' own.
const data = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const text = (number) => data.texts[number];
const slider = by("slider"), number = by("number"), strip = by("strip");
let index = data.first, policy = 0;

function element(name, content, kind) {
  const made = document.createElement(name);
  made.textContent = content;
  if (kind) made.className = kind;
  return made;
}

function filled(id, children, heading) {
  const place = by(id);
  place.hidden = !children.length;
  place.querySelector("ul, tbody, code, div:not(.scroll)").replaceChildren(...children);
  if (heading) place.querySelector("h2").textContent = heading;
}

function way(parts) {
  const item = document.createElement("li");
  item.append(element("strong", parts[0]), element("span", parts[1] || ""));
  const other = /^--gpus (\d+)$/.exec(parts[2] || "");
  if (other && data.counts.includes(Number(other[1]))) {
    const link = element("a", `see ${other[1]} GPUs`);
    link.href = fragment(Number(other[1]), policy);
    item.append(link);
  } else if (parts[2]) item.append(element("code", parts[2]));
  return item;
}

function row([label, was, now]) {
  const line = document.createElement("tr");
  const head = element("th", label);
  head.scope = "row";
  line.append(head, element("td", now, "number"), element("td", was, "number"));
  if (was && was !== now) line.className = "changed";
  return line;
}

function fragment(gpus, which) {
  return `#gpus=${gpus}&policy=${data.policies[which]}`;
}

function show() {
  const gpus = data.counts[index];
  const [status, headline, figures, sentences, points, menu, lines] = data.plans[index][policy];
  slider.value = index;
  slider.setAttribute("aria-valuetext", `${gpus} GPUs`);
  if (Number(number.value) !== gpus) number.value = gpus;
  by("headline").replaceChildren(`${text(headline)} `, element("span", status, `status ${status}`));
  document.title = text(headline);
  const rows = figures.map((each) => each.map(text));
  const changed = rows.filter(([, was, now]) => !was || was !== now);
  filled("figures", changed.map(row));
  const same = rows.filter(([, was, now]) => was && was === now).map(([label, , now]) => `${label} ${now}`);
  by("same").textContent = same.length ? `Unchanged: ${same.join("; ")}.` : "";
  filled("menu", menu.map((parts) => way(parts.map(text))));
  filled("points", points.map((each) => element("li", text(each))), status === "infeasible" ? "Why not" : "Warnings");
  filled("words", sentences.map((each) => element("p", text(each))));
  filled("lines", lines.flatMap((each) => [element(/# was /.test(text(each)) ? "mark" : "span", text(each)), "\n"]));
  document.querySelectorAll("[name=policy]").forEach((radio, at) => { radio.checked = at === policy; });
  const works = data.plans.filter((each) => each[policy][0] !== "infeasible").length;
  by("strip-words").textContent = `${works} of ${data.counts.length} counts work as asked`;
}

function chosen() {
  history.replaceState(null, "", fragment(data.counts[index], policy));
  show();
}

function paint() {
  strip.replaceChildren(...data.plans.map((each) => element("span", "", each[policy][0])));
}

function nearest(gpus) {
  return data.counts.reduce((best, count, at) => (Math.abs(count - gpus) < Math.abs(data.counts[best] - gpus) ? at : best), 0);
}

function fromFragment() {
  const asked = new URLSearchParams(location.hash.slice(1));
  if (asked.has("gpus")) index = nearest(Number(asked.get("gpus")));
  if (asked.has("policy")) policy = Math.max(0, data.policies.indexOf(asked.get("policy")));
  paint();
  show();
}

slider.addEventListener("input", () => { index = Number(slider.value); chosen(); });
number.addEventListener("change", () => { index = nearest(Number(number.value) || data.counts[index]); chosen(); });
strip.addEventListener("click", (event) => {
  const { left, width } = strip.getBoundingClientRect();
  index = Math.min(data.counts.length - 1, Math.floor((event.clientX - left) / width * data.counts.length));
  chosen();
});
document.querySelectorAll("[name=policy]").forEach((radio, at) => radio.addEventListener("change", () => { policy = at; paint(); chosen(); }));
document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
by("copy").addEventListener("click", async () => {
  const copied = by("lines").querySelector("code").textContent;
  try {
    await navigator.clipboard.writeText(copied);
    by("copy").textContent = "Copied";
  } catch {
    // From a file some browsers refuse the clipboard: the lines are selected instead.
    getSelection().selectAllChildren(by("lines").querySelector("code"));
    by("copy").textContent = "Selected";
  }
  setTimeout(() => { by("copy").textContent = "Copy"; }, 1500);
});
addEventListener("hashchange", fromFragment);
fromFragment();
