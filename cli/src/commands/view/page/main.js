// The page: state, and what clicks and keys change.

const GROUPS = ["line", "stack", "stream", "pool", "state"];
const STATES = ["allocated", "pending", "in holes", "idle"];
const MATCHING = "matching";

const $ = (id) => document.getElementById(id);

/** What the page shows. */
const shown = {
  sources: [], panels: [], group: "line", quantity: "live", axis: "time", range: [0, 1],
  words: [], found: new Map(), selected: null,
};

/** Computes the series of all panels for the present grouping and search. */
function prepare() {
  const colours = theme();
  const { group, quantity, words } = shown;
  const sources = shown.panels.map((panel) => panel.source);
  shown.names = group === "state" || words.length > 0 ? [] : ranking(sources, group, quantity);
  for (const panel of shown.panels) {
    const { source } = panel;
    if (words.length > 0) {
      const all = quantity === "reserved" ? source.parts : source.blocks;
      const found = shown.found.get(source);
      const matching = quantity === "reserved" ? source.matching(all, found) : found.values;
      const total = quantity === "reserved" ? source.reserved : source.active;
      const rest = Float64Array.from(total, (value, at) => Math.max(0, value - matching[at]));
      panel.series = [
        { name: MATCHING, values: matching, colour: colours.accent },
        { name: OTHERS, values: rest, colour: colours.others },
      ];
    } else if (group === "state") {
      panel.series = source.states().map((values, at) => ({
        name: STATES[at], values, colour: colours.states[at], hatched: STATES[at] === "pending" || STATES[at] === "idle",
      }));
    } else {
      const sums = source.series(group, quantity, shown.names);
      panel.series = sums.map((values, at) => ({
        name: shown.names[at] ?? OTHERS, values, colour: shown.names[at] ? colours.groups[at] : colours.others,
      }));
    }
    panel.total = quantity === "reserved" && group !== "state" ? source.reserved : source.active;
    panel.most = highest(source.mostReserved);
  }
  shown.most = Math.max(...shown.panels.map((panel) => panel.most));
}

function highest(values) {
  let most = 0;
  for (const value of values) most = Math.max(most, value);
  return most;
}

function drawChart(panel) {
  const { series, total, moment, hover, drag } = panel;
  const { quantity, axis, range, most } = shown;
  panel.chart.draw(panel.source, { series, total, moment, hover, drag, quantity, axis, range, most });
}

/** Returns the colour of a group. */
function colourOf(name) {
  const colours = theme();
  if (shown.words.length > 0) return colours.accent;
  const at = shown.names.indexOf(name);
  return at < 0 ? colours.others : colours.groups[at];
}

function drawMap(panel) {
  const { source, moment } = panel;
  const colours = theme();
  const { group } = shown;
  const kind = group === "state" ? "line" : group;
  const { items, ofItem, names } = source.grouping(kind, "live");
  const places = names.map((name) => shown.names.indexOf(name));
  const found = shown.words.length > 0 ? shown.found.get(source) : null;
  // A row of the list selects its whole group, in both maps; a block selects its stack.
  const chosen = shown.selected?.kind === kind ? names.indexOf(shown.selected.name) : null;
  const stack = chosen === null && shown.selected?.source === source ? shown.selected.stack : null;
  const colour = (block) => {
    const own = source.blocks.stack[block];
    if (found) return found[own] ? colours.accent : null;
    if (chosen !== null && ofItem[items[block]] !== chosen) return null;
    if (stack !== null && own !== stack) return null;
    if (group === "state") return colours.states[0];
    const place = places[ofItem[items[block]]];
    return place < 0 ? colours.others : colours.groups[place];
  };
  const segments = source.segments(moment);
  const selected = shown.selected?.source === source ? shown.selected.block : null;
  panel.map.draw(source, moment, segments, { colourOf: colour, selected, row: shown.row });
  panel.mapTitle.textContent = shown.panels.length > 1 ? `Segments of ${source.name}` : "Segments and blocks at this moment";
  const chip = (background, text, opacity) => {
    const mark = element("i");
    mark.style.background = background;
    mark.style.opacity = opacity;
    return element("span", {}, mark, text);
  };
  panel.key.replaceChildren(
    chip(colours.states[2], "in holes: free beside blocks in use", 0.7),
    chip(colours.others, "idle: a wholly free segment or page", 0.5),
    element("span", {}, `a row is ${bytes(panel.map.row)}`),
    element("span", {}, `largest hole ${bytes(largestHole(segments))}`),
  );
}

/** Writes the line about the chosen moment, with the jumps. */
function writeMoment(panel) {
  const { source, moment } = panel;
  const at = source.time ? ` · ${duration(source.time[moment])}` : "";
  const facts = [
    `reserved ${bytes(source.reserved[moment])}`,
    `in use ${bytes(source.active[moment])}`,
    ...(source.pending[moment] > 0 ? [`pending ${bytes(source.pending[moment])}`] : []),
    `in holes ${bytes(source.holes[moment])}`,
    `idle ${bytes(Math.max(0, source.reserved[moment] - source.active[moment] - source.holes[moment]))}`,
  ];
  const jump = (text, target, className = "") => {
    const button = element("button", { type: "button", className }, text);
    button.addEventListener("click", () => choose(panel, target()));
    return button;
  };
  const jumps = element("span", { className: "jumps" },
    jump("◂", () => moment - 1), jump("▸", () => moment + 1),
    jump("peak of reserved", () => source.peaks[0]), jump("peak in use", () => source.peaks[1]),
    ...(source.failures.length > 0 ? [jump(plural(source.failures.length, "failed request"), () => nextFailure(panel), "failed")] : []),
    jump("end", () => source.count - 1));
  panel.line.replaceChildren(
    element("span", { className: "now" }, `event ${grouped(source.state[moment])} of ${grouped(source.all_events)}${at}`),
    ...facts.map((fact) => element("span", {}, fact)), jumps);
}

function nextFailure(panel) {
  const next = panel.source.failures.find((failure) => failure.moment > panel.moment) ?? panel.source.failures[0];
  return next.moment;
}

function writeLegend() {
  const [panel] = shown.panels;
  const entries = panel.series.filter((_, at) => shown.panels.some((one) => highest(one.series[at].values) > 0)).map(({ name, colour }) => {
    const mark = element("i");
    mark.style.background = colour;
    return element("span", { title: name }, mark, name);
  });
  $("legend").replaceChildren(...entries);
}

function writeGroups() {
  const kind = shown.group === "state" ? "line" : shown.group;
  const both = shown.panels.length > 1;
  $("groups-title").textContent = both ? `Differences at the chosen moments, by ${kind}` : `In use at this moment, by ${kind}`;
  const matches = (name) => {
    if (shown.words.length === 0) return true;
    return shown.panels.some(({ source }) => shown.matchingNames(source, kind).has(name));
  };
  fillGroups($("groups"), shown.panels, kind, colourOf, matches, (source, stack, name) => select({ source, stack, name, kind, block: null }));
}

/** Returns the names of the groups with a matching stack. */
shown.matchingNames = (source, kind) => {
  const found = shown.found.get(source);
  const key = `${kind} ${shown.words.join(" ")}`;
  if (found.key !== key) {
    found.key = key;
    found.names = source.matchingNames(kind, found);
  }
  return found.names;
};

function writeDetail() {
  const { selected } = shown;
  $("detail-card").hidden = selected === null;
  if (selected === null) return;
  const { source, stack, block } = selected;
  const facts = [];
  if (block !== null) {
    const { blocks } = source;
    const [stream, pool] = source.heapNames[blocks.heap[block]];
    const panel = shown.panels.find((one) => one.source === source);
    const isPending = panel && blocks.freed[block] <= panel.moment;
    facts.push(`${bytes(blocks.bytes[block])} at 0x${blocks.address[block].toString(16)}, ${stream}, ${pool}`);
    const birth = source.state[blocks.birth[block]];
    const since = birth === source.state[0] ? `from before the ${source.is_range ? "range" : "first event"}` : `since event ${grouped(birth)}`;
    const end = blocks.death[block] < source.count ? `until event ${grouped(source.state[blocks.death[block]])}` : `until the end${source.is_range ? " of the range" : ""}`;
    facts.push(`${since}, ${end}${isPending ? "; pending: freed, and still used by other streams" : ""}`);
  }
  fillStack($("detail"), source, stack, facts);
}

function select(selected) {
  shown.selected = selected;
  shown.panels.forEach(drawMap);
  writeDetail();
}

function selectBlock(panel, block) {
  const { source } = panel;
  select({ source, stack: source.blocks.stack[block], block });
}

/** Chooses a moment. The other panel follows: to the same part of the whole time. */
function choose(panel, moment) {
  panel.moment = Math.max(0, Math.min(panel.source.count - 1, moment));
  const xs = panel.chart.positions(panel.source, shown.axis);
  const part = xs[panel.moment] / (xs[panel.source.count - 1] || 1);
  for (const other of shown.panels.filter((one) => one !== panel)) {
    const places = other.chart.positions(other.source, shown.axis);
    other.moment = Math.min(other.source.count - 1, firstAtLeast(places, part * (places[other.source.count - 1] || 1)));
  }
  drawMoment();
}

/** Draws everything that depends on the chosen moments. */
function drawMoment() {
  const start = performance.now();
  // All maps have the same scale.
  shown.row = Math.max(...shown.panels.map(({ source, moment }) => rowOf(source.reserved[moment])));
  if (shown.selected) shown.selected.block = null;
  for (const panel of shown.panels) {
    drawChart(panel);
    drawMap(panel);
    writeMoment(panel);
  }
  writeGroups();
  writeDetail();
  shown.lastClick = performance.now() - start;
}

function draw() {
  prepare();
  writeLegend();
  drawMoment();
}

function zoom([from, to]) {
  if (to - from < 1e-7) return;
  shown.range = [Math.max(0, from), Math.min(1, to)];
  shown.panels.forEach(drawChart);
}

/** Zooms about a part of the whole time. */
function zoomBy(factor, about) {
  const [from, to] = shown.range;
  const width = Math.min(1, (to - from) * factor);
  const start = Math.max(0, Math.min(1 - width, about - ((about - from) / (to - from)) * width));
  zoom([start, start + width]);
}

function search(text) {
  shown.words = text.toLowerCase().split(/\s+/).filter((word) => word !== "");
  shown.found.clear();
  const notes = [];
  if (shown.words.length > 0) {
    for (const { source } of shown.panels) {
      const found = source.search(shown.words);
      shown.found.set(source, found);
      const values = (found.values = source.matching(source.blocks, found));
      const count = found.reduce((sum, flag) => sum + flag, 0);
      const at = values.indexOf(highest(values));
      notes.push(`${plural(count, "stack")} match: at most ${bytes(highest(values))} in use, at event ${grouped(source.state[at])}`);
    }
  }
  $("found").hidden = notes.length === 0;
  $("found").textContent = notes.join(" · ");
  draw();
}

/** Shows one source, or two side by side. */
function show(numbers) {
  shown.panels = numbers.map((number) => new Panel(shown.sources[number]));
  if (!shown.panels.some(({ source }) => source.columns.stack_frame.length > 0) && ["line", "stack"].includes(shown.group)) {
    // Without stacks, the state tells the most.
    shown.group = "state";
    mark("group", shown.group);
  }
  const two = numbers.length > 1;
  for (const id of ["charts", "maps", "lower", "answers"]) $(id).classList.toggle("two", two);
  $("charts").replaceChildren(...shown.panels.map((panel) => panel.card));
  $("maps").replaceChildren(...shown.panels.map((panel) => panel.mapCard));
  $("answers").replaceChildren(...shown.panels.map(({ source }) => answerOf(source)));
  shown.selected = null;
  const hasTime = shown.panels.every(({ source }) => source.time);
  if (!hasTime) shown.axis = "events";
  $("axis").hidden = !hasTime;
  writePickers(numbers);
  fillFailures($("failures"), shown.panels, (panel, failure) => {
    choose(panel, failure.moment);
    panel.card.scrollIntoView({ behavior: "smooth", block: "center" });
  });
  mark("axis", shown.axis);
  search($("search").value);
}

function answerOf(source) {
  const { answer } = source;
  const sentence = element("p", { className: "sentence" });
  const codes = (text) => text.split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part));
  // What a setting would have saved stands out, or the utilisation.
  const [, before, share, after] = answer.sentence.match(/^(.*?would have saved )([\d.]+ [KMGT]?i?B)(.*)$/s)
    ?? answer.sentence.match(/^(.*?utilisation )([\d.]+ %)(.*)$/s) ?? [null, answer.sentence, "", ""];
  sentence.append(...codes(before), element("b", {}, share), ...codes(after));
  const { fullest } = answer;
  const tiles = [
    ["reserved at the peak", answer.peak_reserved_bytes], ["most in use", fullest.in_use_bytes],
    ["in holes then", fullest.hole_bytes], ["idle then", fullest.idle_bytes], ["kept by private pools then", fullest.kept_bytes],
    ["reserved then", fullest.reserved_bytes],
  ].filter(([name, value]) => value > 0 || !name.startsWith("kept")).map(([name, value]) => element("li", {}, element("b", {}, bytes(value)), element("span", {}, name)));
  tiles.push(element("li", {}, element("b", {}, grouped(source.events)), element("span", {}, "events")));
  const step = source.step > 1 ? ` · each moment shows the most memory in use of ${source.step} events` : "";
  const config = source.config && !source.label.endsWith(source.config) ? ` · ${source.config}` : "";
  return element("div", { className: "answer" }, element("h1", {}, `${source.name}${config}${step}`), sentence,
    element("ul", { className: "tiles" }, ...tiles));
}

/** Offers all sources, if the page has several. */
function writePickers(numbers) {
  if (shown.sources.length < 2) return;
  const picker = (which, label) => {
    const options = shown.sources.map((source, at) => element("option", { value: at, selected: numbers[which] === at }, source.name));
    if (which === 1) options.unshift(element("option", { value: "", selected: numbers.length < 2 }, "nothing beside"));
    const made = element("select", { title: label }, ...options);
    made.setAttribute("aria-label", label);
    made.addEventListener("change", () => {
      const chosen = [...$("pickers").querySelectorAll("select")].map((one) => one.value).filter((value) => value !== "");
      show(chosen.map(Number));
    });
    return made;
  };
  $("pickers").replaceChildren(picker(0, "Shown"), " ", picker(1, "Shown beside"));
}

/** Marks the chosen value of a choice. */
function mark(id, value) {
  for (const button of $(id).querySelectorAll("button")) {
    button.setAttribute("role", "radio");
    button.setAttribute("aria-checked", String(button.dataset.value === value));
  }
}

function setChoice(id, value) {
  shown[id] = value;
  mark(id, value);
  draw();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  if (shown.panels.length > 0) draw();
}

function switchTheme() {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
}

const next = (values, value) => values[(values.indexOf(value) + 1) % values.length];

/** What keys do. */
const KEYS = {
  ArrowLeft: (panel, far) => choose(panel, panel.moment - (far ? stride(panel) : 1)),
  ArrowRight: (panel, far) => choose(panel, panel.moment + (far ? stride(panel) : 1)),
  Home: (panel) => choose(panel, 0),
  End: (panel) => choose(panel, panel.source.count - 1),
  p: (panel) => choose(panel, panel.source.peaks[0]),
  l: (panel) => choose(panel, panel.source.peaks[1]),
  o: (panel) => panel.source.failures.length > 0 && choose(panel, nextFailure(panel)),
  "+": (panel) => zoomBy(0.5, partOf(panel)),
  "=": (panel) => zoomBy(0.5, partOf(panel)),
  "-": (panel) => zoomBy(2, partOf(panel)),
  0: () => zoom([0, 1]),
  g: () => setChoice("group", next(GROUPS, shown.group)),
  r: () => setChoice("quantity", next(["live", "reserved"], shown.quantity)),
  t: () => !$("axis").hidden && setChoice("axis", next(["time", "events"], shown.axis)),
  d: switchTheme,
  "/": () => $("search").focus(),
  "?": () => $("help").showModal(),
  Escape: () => {
    if ($("search").value !== "") {
      $("search").value = "";
      search("");
    }
    select(null);
  },
};

/** Returns a hundredth of the visible moments. */
function stride(panel) {
  const [from, to] = shown.range;
  return Math.max(1, Math.round((panel.source.count * (to - from)) / 100));
}

/** Returns the part of the whole time at the chosen moment. */
function partOf(panel) {
  const xs = panel.chart.positions(panel.source, shown.axis);
  return xs[panel.moment] / (xs[panel.source.count - 1] || 1);
}

function listen() {
  for (const id of ["group", "quantity", "axis"]) {
    mark(id, shown[id]);
    $(id).addEventListener("click", (event) => {
      const { value } = event.target.dataset;
      if (value) setChoice(id, value);
    });
  }
  let waiting = 0;
  $("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => search($("search").value), 120);
  });
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Escape") $("search").blur();
  });
  $("theme-button").addEventListener("click", switchTheme);
  $("help-button").addEventListener("click", () => $("help").showModal());
  $("deselect").addEventListener("click", () => select(null));
  document.addEventListener("keydown", (event) => {
    const isText = event.target.matches("input, select, textarea") && event.key !== "Escape";
    if (isText || event.ctrlKey || event.metaKey || event.altKey || $("help").open || !KEYS[event.key]) return;
    event.preventDefault();
    const panel = shown.panels.find((one) => one.canvas === document.activeElement) ?? shown.panels[0];
    KEYS[event.key](panel, event.shiftKey);
  });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) draw();
    width = innerWidth;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
}

/** Prepares later choices and searches while nothing else is to be done. */
function prepareAhead() {
  const work = shown.panels.flatMap(({ source }) => source.ahead());
  const go = (deadline) => {
    // A piece takes some tens of milliseconds at most, so a click never waits for more than one.
    do work.shift()?.(); while (work.length > 0 && deadline.timeRemaining() > 30);
    if (work.length > 0) globalThis.requestIdleCallback(go);
  };
  // Safari has no such callbacks before version 26, and makes everything when asked.
  globalThis.requestIdleCallback?.(go);
}

async function start() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const began = performance.now();
  for (const script of document.querySelectorAll("script.source")) {
    shown.sources.push(new Source(await decoded(script.textContent)));
    script.remove();
  }
  const labels = new Set(shown.sources.map((source) => source.label));
  const largest = (of) => shown.sources.indexOf(of.reduce((one, other) => (other.answer.peak_reserved_bytes > one.answer.peak_reserved_bytes ? other : one)));
  const ofLabel = (label) => shown.sources.filter((source) => source.label === label);
  listen();
  $("loading").remove();
  show([...labels].slice(0, 2).map((label) => largest(ofLabel(label))));
  shown.loaded = performance.now() - began;
  prepareAhead();
}

// For tests of the page.
window.cachalot = { shown, choose, search, setChoice, show, zoom };
window.cachalot.ready = start().catch((error) => {
  $("loading").textContent = `The page cannot be shown: ${error.message}. It needs a browser of 2023 or later.`;
  throw error;
});
