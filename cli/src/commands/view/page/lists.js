// Lists beside the chart: stacks at a moment, failed requests, a stack in full.

const MOST_ROWS_OF_LIST = 200;

/** Creates an element with text and children. */
function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** Returns the bytes and blocks of each group at a moment, by name. */
function totalsAt(source, moment, kind) {
  const { items, ofItem, names } = source.grouping(kind, "live");
  const totals = new Map();
  for (const block of source.at(source.blocks, moment)) {
    const name = names[ofItem[items[block]]];
    const total = totals.get(name) ?? { bytes: 0, blocks: 0, stack: source.blocks.stack[block] };
    total.bytes += source.blocks.bytes[block];
    total.blocks += 1;
    totals.set(name, total);
  }
  return totals;
}

/** Fills the list of groups. With two sources each row has both and the difference. */
function fillGroups(list, panels, kind, colourOf, matches, select) {
  const totals = panels.map(({ source, moment }) => totalsAt(source, moment, kind));
  const names = [...new Set(totals.flatMap((of) => [...of.keys()]))].filter(matches);
  const both = panels.length > 1;
  const at = (which, name) => totals[which]?.get(name)?.bytes ?? 0;
  const key = both
    ? (name) => Math.abs(at(1, name) - at(0, name)) + at(0, name) * 1e-6
    : (name) => at(0, name);
  names.sort((one, other) => key(other) - key(one));
  const most = Math.max(1, ...names.map((name) => Math.max(at(0, name), at(1, name))));
  const rows = names.slice(0, MOST_ROWS_OF_LIST).map((name) => {
    const total = totals[0].get(name) ?? totals[1].get(name);
    const row = element("button", { className: "row", type: "button", title: name });
    const chip = element("span", { className: "chip" });
    chip.style.background = colourOf(name);
    const text = element("span", { className: "text" }, name);
    row.append(chip, text);
    if (both) {
      const change = at(1, name) - at(0, name);
      const sizes = `${bytes(at(0, name))} → ${bytes(at(1, name))}`;
      row.append(element("span", { className: "size" }, element("b", {}, difference(change)), element("small", {}, sizes)));
    } else {
      const share = element("span", { className: "share" });
      share.style.width = `${(100 * total.bytes) / most}%`;
      share.style.background = colourOf(name);
      const count = element("small", {}, plural(total.blocks, "block"));
      row.append(element("span", { className: "size" }, element("b", {}, bytes(total.bytes)), count), share);
    }
    const owner = totals[0].has(name) ? panels[0].source : panels[1].source;
    row.addEventListener("click", () => select(owner, total.stack, name));
    return row;
  });
  if (names.length > rows.length) rows.push(element("p", { className: "soft" }, `… and ${plural(names.length - rows.length, "more")}`));
  if (names.length === 0) rows.push(element("p", { className: "soft" }, "Nothing at this moment."));
  list.replaceChildren(...rows);
}

/** Shows a stack in full. */
function fillStack(place, source, stack, facts) {
  const frames = source.frames(stack).map((frame) =>
    element("li", { className: frame.hidden ? "hidden" : "" },
      element("b", {}, frame.name), ` ${frame.file}${frame.line > 0 ? `:${frame.line}` : ""}`));
  const note = source.notes[stack];
  const nothing = "No stack was recorded: call torch.cuda.memory._record_memory_history() before the model is made.";
  place.replaceChildren(
    ...facts.map((fact) => element("p", {}, fact)),
    ...(note ? [element("p", { className: "note" }, note)] : []),
    frames.length > 0 ? element("ol", { className: "frames" }, ...frames) : element("p", { className: "soft" }, nothing),
  );
}

/** Returns what is known about a failed request, with what would have been enough. */
function failureFacts(source, failure) {
  const segments = source.segments(failure.moment);
  // The memory of a private pool serves no other, and stays as long as its graphs live.
  const nameOf = (segment) => source.heapNames[segment.heap];
  const others = segments.filter((segment) => !nameOf(segment)[1].startsWith("private pool"));
  const here = others.filter((segment) => nameOf(segment)[0] === streamName(failure.stream));
  const elsewhere = others.filter((segment) => !here.includes(segment));
  const sum = (all, of) => all.reduce((total, segment) => total + of(segment), 0);
  const free = sum(segments, (segment) => segment.free);
  const idle = sum(others, (segment) => segment.idle);
  const kept = free - sum(others, (segment) => segment.free);
  const [largest, other] = [largestFree(here), largestFree(elsewhere)];
  const pending = source.pending[failure.moment];
  // A replayed program does not know the memory of the device, and names a huge amount.
  const device = failure.device_free !== null && failure.device_free < 2 ** 45 ? failure.device_free : null;
  const facts = [
    ["free on the device", device === null ? "not recorded" : bytes(device)],
    ["free in the cache", bytes(free)],
    ...(kept > 0 ? [["of it in private pools, as those of CUDA graphs", bytes(kept)]] : []),
    ["largest free piece here", bytes(largest)],
    ["largest free piece elsewhere", bytes(other)],
    ["idle, to be released", bytes(idle)],
    ["pending on other streams", bytes(pending)],
  ];
  const left = device !== null && device < failure.bytes ? device : 0;
  const ways = [
    [device !== null && device >= failure.bytes, "a higher limit, for the device had enough"],
    [left + idle >= failure.bytes, "to release wholly free segments"],
    [other >= failure.bytes, "a free piece of another stream"],
    [left + sum(here, (segment) => segment.free) >= failure.bytes,
      "free memory in one piece, as expandable_segments:True can have it"],
  ].filter(([holds]) => holds).map(([, way]) => way);
  // What was tried by replay comes before what the memory at the failure suggests.
  const answer = source.answer.rescue ? `${source.answer.rescue}.`
    : ways.length > 0 ? `Enough by these figures: ${ways.join("; ")}.` : "No single change would have been enough.";
  return { facts, answer };
}

/** Fills the list of failed requests. */
function fillFailures(place, panels, go) {
  const cards = panels.flatMap((panel) => panel.source.failures.map((failure) => {
    const { facts, answer } = failureFacts(panel.source, failure);
    const rows = facts.map(([name, value]) => element("tr", {}, element("td", {}, name), element("td", {}, value)));
    const button = element("button", { type: "button", className: "link" }, "show this moment");
    button.addEventListener("click", () => go(panel, failure));
    const name = panels.length > 1 ? ` (${panel.source.name})` : "";
    return element("article", { className: "failure" },
      element("h3", {}, `A request of ${bytes(failure.bytes)} failed on ${streamName(failure.stream)}${name}`),
      element("p", {}, panel.source.line(failure.stack)),
      element("table", {}, ...rows),
      element("p", {}, ...answer.split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part))), button);
  }));
  place.replaceChildren(...cards.slice(0, 50));
  place.closest("section").hidden = cards.length === 0;
}
