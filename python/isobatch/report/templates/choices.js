(() => {
  // The page has every plan; its texts are numbered, since most of them are many plans' own.
  const data = JSON.parse(document.getElementById("plans").textContent);
  const by = (id) => document.getElementById(id);
  const text = (number) => data.texts[number];
  const slider = by("slider"), number = by("number"), strip = by("strip");
  let index = data.first, policy = 0, asked = data.counts[index];

  const element = (name, content, kind) => {
    const made = document.createElement(name);
    made.textContent = content;
    if (kind) made.className = kind;
    return made;
  };

  const fill = (id, children, heading) => {
    const place = by(id);
    place.hidden = !children.length;
    place.querySelector("ul, tbody, code, div").replaceChildren(...children);
    if (heading) place.querySelector("p").textContent = heading;
  };

  const fragment = (gpus) => `#gpus=${gpus}&policy=${data.policies[policy]}`;

  const way = ([what, split, price, flags, gpus]) => {
    const item = document.createElement("li");
    item.append(element("strong", text(what)), element("span", text(split)));
    if (text(price)) item.append(element("span", text(price)));
    if (gpus !== data.counts[index] && data.counts.includes(gpus)) {
      const link = element("a", `see ${gpus} GPUs`);
      link.href = fragment(gpus);
      item.append(link);
    } else item.append(element("code", text(flags)));
    return item;
  };

  const row = ([label, was, now]) => {
    const line = document.createElement("tr"), head = element("th", label);
    head.scope = "row";
    line.append(head, element("td", now, "number"), element("td", was, "number"));
    if (was && was !== now) line.className = "changed";
    return line;
  };

  // The axis of a chart is logarithmic, from its first count to its last.
  const mark = (figure, gpus) => {
    const { low, high } = figure.dataset, width = figure.querySelector(".background").getBBox().width;
    const share = low === high ? 0.5 : Math.log(gpus / low) / Math.log(high / low), isRight = share > 0.5;
    const line = figure.querySelector(".chosen_line_marks"), name = figure.querySelector(".chosen_text_marks text");
    line.style.display = name.style.display = share < 0 || share > 1 ? "none" : "";
    const at = `translate(${share * width + 0.5},0)`;
    line.firstElementChild.setAttribute("transform", at);
    name.setAttribute("transform", `${at} translate(${isRight ? -5 : 5},12)`);
    name.setAttribute("text-anchor", isRight ? "end" : "start");
    name.textContent = `${gpus} GPUs`;
  };

  const show = () => {
    const gpus = data.counts[index];
    const [level, headline, figures, points, ways, lines, folded] = data.plans[index][policy];
    slider.value = index;
    slider.setAttribute("aria-valuetext", `${gpus} GPUs`);
    number.value = gpus;
    by("headline").replaceChildren(`${text(headline)} `, element("span", level, `status ${level}`));
    document.title = text(headline);
    const rows = figures.map((each) => each.map(text)), isNew = !rows.some(([, was]) => was);
    const isShown = ([label, was, now]) => (isNew ? data.answers.includes(label) : was !== now);
    by("figures").classList.toggle("new", isNew);
    fill("figures", rows.filter(isShown).map(row));
    const rest = rows.filter((each) => !isShown(each)).map(([label, , now]) => `${label.split(",")[0]} ${now}`);
    if (rest.length) rest.splice(0, rest.length, `${isNew ? "Also" : "As tuned"}: ${rest.join("; ")}.`);
    fill("menu", ways.map(way));
    fill("points", points.map((each) => element("li", text(each))), "Warnings:");
    fill("lines", lines.flatMap((each) => [element(/# was /.test(text(each)) ? "mark" : "span", text(each)), "\n"]));
    fill("folded", [...rest, ...folded.map(text)].map((each) => element("li", each)));
    document.querySelectorAll("figure[data-low]").forEach((figure) => mark(figure, gpus));
    document.querySelectorAll("[name=policy]").forEach((radio, at) => { radio.checked = at === policy; });
    const works = data.plans.filter((each) => each[policy][0] !== "infeasible").length;
    const other = asked === gpus ? "" : `${asked} is not among the counts: ${gpus} is shown. `;
    by("strip-words").textContent = `${other}${works} of ${data.counts.length} counts ${data.meet}.${data.note}`;
    document.body.dataset.ready = "yes";
  };

  const choose = (at) => {
    index = at;
    asked = data.counts[at];
    history.replaceState(null, "", fragment(asked));
    show();
  };

  const chooseNearest = (gpus) => {
    const far = (count) => Math.abs(count - gpus);
    choose(data.counts.reduce((best, count, at) => (far(count) < far(data.counts[best]) ? at : best), 0));
    asked = gpus;
    show();
  };

  const paint = () => strip.replaceChildren(...data.plans.map((each) => element("span", "", each[policy][0])));

  const follow = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    policy = Math.max(0, data.policies.indexOf(given.get("policy")));
    paint();
    if (Number(given.get("gpus")) > 0) chooseNearest(Number(given.get("gpus")));
    else show();
  };

  slider.addEventListener("input", () => choose(Number(slider.value)));
  number.addEventListener("change", () => chooseNearest(Number(number.value) || data.counts[index]));
  strip.addEventListener("click", (event) => {
    const { left, width } = strip.getBoundingClientRect();
    choose(Math.min(data.counts.length - 1, Math.floor((event.clientX - left) / width * data.counts.length)));
  });
  document.querySelectorAll("[name=policy]").forEach((radio, at) => radio.addEventListener("change", () => {
    policy = at;
    paint();
    choose(index);
  }));
  document.querySelector("form.choice").addEventListener("submit", (event) => event.preventDefault());
  by("copy").addEventListener("click", async () => {
    const copied = by("lines").querySelector("code");
    try {
      await navigator.clipboard.writeText(copied.textContent);
      by("copy").textContent = "Copied";
    } catch {
      // From a file some browsers refuse the clipboard: the lines are selected instead.
      getSelection().selectAllChildren(copied);
      by("copy").textContent = "Selected";
    }
    setTimeout(() => { by("copy").textContent = "Copy"; }, 1500);
  });
  addEventListener("hashchange", follow);
  follow();
})();
