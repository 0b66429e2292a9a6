// A program on the page: chart, range and map, with what the pointer does.

class Panel {
  constructor(source) {
    this.source = source;
    this.moment = source.peaks[1];
    this.hover = null;
    const canvas = (className, label) => {
      const made = element("canvas", { className, tabIndex: className === "chart" ? 0 : -1 });
      made.setAttribute("role", "img");
      made.setAttribute("aria-label", label);
      return made;
    };
    this.canvas = canvas("chart", `Memory of ${source.name} over time`);
    this.overview = canvas("overview", "The visible range of the whole time");
    this.mapCanvas = canvas("map", "Segments and blocks at the chosen moment");
    this.chart = new Chart(this.canvas, this.overview);
    this.map = new MemoryMap(this.mapCanvas);
    this.line = element("div", { className: "moment" });
    this.key = element("div", { className: "key" });
    this.card = element("figure", { className: "card" }, element("h2", {}, source.name), this.canvas, this.overview, this.line);
    this.card.style.margin = 0;
    this.mapTitle = element("h2");
    this.mapCard = element("section", { className: "card" }, this.mapTitle, this.mapCanvas, this.key);
    this.listen();
  }

  /** Changes with the pointer: a click chooses a moment, and dragging a range. */
  listen() {
    const x = (event) => event.clientX - event.currentTarget.getBoundingClientRect().left;
    const y = (event) => event.clientY - event.currentTarget.getBoundingClientRect().top;
    let start = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      start = x(event);
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      this.hover = this.chart.momentAt(x(event));
      this.drag = start !== null && Math.abs(x(event) - start) > 4 ? [start, x(event)] : null;
      drawChart(this);
      if (event.pointerType === "mouse") showTip(event, tipOfChart(this));
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (this.drag) {
        const ends = this.drag.map((end) => this.chart.partAt(end)).sort((one, other) => one - other);
        this.drag = null;
        zoom(ends);
      } else if (start !== null) {
        choose(this, this.chart.momentAt(x(event)));
      }
      start = null;
    });
    this.canvas.addEventListener("pointerleave", () => {
      this.hover = null;
      hideTip();
      drawChart(this);
    });
    this.canvas.addEventListener("dblclick", () => zoom([0, 1]));
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      zoomBy(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, this.chart.partAt(x(event)));
    }, { passive: false });
    this.listenToOverview(x);
    this.mapCanvas.addEventListener("pointermove", (event) => {
      const hit = this.map.hit(x(event), y(event));
      if (hit) showTip(event, tipOfMap(this, hit));
      else hideTip();
    });
    this.mapCanvas.addEventListener("pointerleave", hideTip);
    this.mapCanvas.addEventListener("click", (event) => {
      const hit = this.map.hit(x(event), y(event));
      if (hit && hit.block !== null) selectBlock(this, hit.block);
      else select(null);
    });
  }

  listenToOverview(x) {
    let grip = null;
    const part = (event) => Math.max(0, Math.min(1, (x(event) - this.chart.area.left) / this.chart.inner));
    this.overview.addEventListener("pointerdown", (event) => {
      const [from, to] = shown.range;
      const at = part(event);
      const near = 8 / this.chart.inner;
      const isEdge = (end) => Math.abs(at - end) < near;
      if (isEdge(from)) grip = { fixed: to };
      else if (isEdge(to)) grip = { fixed: from };
      else if (to - from < 1 && at > from && at < to) grip = { shift: at - from };
      else grip = { fixed: at };
      this.overview.setPointerCapture(event.pointerId);
    });
    this.overview.addEventListener("pointermove", (event) => {
      if (!grip) return;
      const at = part(event);
      const [from, to] = shown.range;
      if (grip.shift === undefined) {
        if (Math.abs(at - grip.fixed) > 0.002) zoom([Math.min(at, grip.fixed), Math.max(at, grip.fixed)]);
      } else {
        const start = Math.max(0, Math.min(1 - (to - from), at - grip.shift));
        zoom([start, start + to - from]);
      }
    });
    this.overview.addEventListener("pointerup", () => (grip = null));
    this.overview.addEventListener("dblclick", () => zoom([0, 1]));
  }
}

function tipOfChart(panel) {
  const { source, hover } = panel;
  const at = source.time ? ` · ${duration(source.time[hover])}` : "";
  const rows = panel.series.map(({ name, values, colour }) => [colour, name, values[hover]]).filter(([, , value]) => value > 0);
  rows.push([theme().ink, "reserved", source.mostReserved[hover]]);
  const near = source.marks.filter((mark) => mark.moment === hover).map((mark) => mark.text).slice(0, 3);
  return [`event ${grouped(source.state[hover])}${at}${near.length > 0 ? ` · ${near.join(", ")}` : ""}`, rows];
}

function tipOfMap(panel, { segment, block, address }) {
  const { source } = panel;
  const [stream, pool, kind] = source.heapNames[segment.heap];
  const of = `${stream}, ${pool}${kind ? `, ${kind} blocks` : ""}`;
  const rows = [[theme().ink, `segment of ${of}`, segment.end - segment.start]];
  if (segment.holes > 0) rows.push([theme().states[2], "in holes of this segment", segment.holes]);
  if (segment.idle > 0) rows.push([theme().others, "idle in this segment", segment.idle]);
  if (block === null) return [`free at 0x${Math.floor(address).toString(16)}`, rows];
  const { blocks } = source;
  rows.unshift([theme().accent, source.line(blocks.stack[block]), blocks.bytes[block]]);
  const state = blocks.freed[block] <= panel.moment ? "pending block" : "block";
  return [`${state} at 0x${blocks.address[block].toString(16)}`, rows];
}

function showTip(event, [title, rows]) {
  const lines = rows.map(([colour, name, value]) => {
    const chip = element("span", { className: "chip" });
    chip.style.background = colour;
    return element("div", {}, chip, element("span", {}, name), element("span", {}, bytes(value)));
  });
  const tip = $("tip");
  tip.replaceChildren(element("b", {}, title), ...lines);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(innerHeight - height - 4, event.clientY + 14))}px`;
}

function hideTip() {
  $("tip").hidden = true;
}
