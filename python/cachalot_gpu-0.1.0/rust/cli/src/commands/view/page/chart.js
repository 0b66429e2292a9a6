// The chart of memory over time, with the range below it.

const MARGIN = { left: 66, right: 104, top: 26, bottom: 26 };
const NARROW = 560;

/** Returns the colours of the page's theme. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  return {
    ink: colour("--ink"), soft: colour("--soft"), faint: colour("--faint"), surface: colour("--surface"),
    alarm: colour("--alarm"), accent: colour("--accent"), others: colour("--others"),
    groups: [1, 2, 3, 4, 5, 6, 7].map((number) => colour(`--group-${number}`)),
    states: ["--allocated", "--pending", "--holes", "--idle"].map(colour),
    font: `12px ${style.getPropertyValue("--font")}`, bold: `600 12px ${style.getPropertyValue("--font")}`,
  };
}

/** Prepares a canvas for the screen's density. Returns the context, width and height. */
function prepared(canvas, height) {
  const width = Math.max(120, Math.floor(canvas.clientWidth));
  const density = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * density);
  canvas.height = Math.round(height * density);
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  return [context, width, height];
}

class Chart {
  constructor(canvas, overview) {
    this.canvas = canvas;
    this.overview = overview;
  }

  /** Returns the place of each moment on the axis. */
  positions(source, axis) {
    return axis === "time" && source.time ? source.time : source.state;
  }

  /** Draws the chart. `view` has the range, the series, the axis and the moments to mark. */
  draw(source, view) {
    this.source = source;
    this.view = view;
    const [context, width, height] = prepared(this.canvas, width_of(this.canvas) < NARROW ? 240 : 320);
    const colours = theme();
    const right = width < NARROW ? 12 : MARGIN.right;
    const area = { left: MARGIN.left, top: MARGIN.top, width: width - MARGIN.left - right };
    area.height = height - MARGIN.top - MARGIN.bottom;
    area.right = right;
    this.area = area;
    this.xs = this.positions(source, view.axis);
    const last = this.xs[source.count - 1] || 1;
    this.from = last * view.range[0];
    this.to = Math.max(last * view.range[1], this.from + last * 1e-9);
    this.columns = this.choose(Math.max(1, Math.floor(area.width)));
    const most = view.most * 1.06 || 1;
    this.y = (value) => area.top + area.height * (1 - value / most);
    context.clearRect(0, 0, width, height);
    this.grid(context, colours, most);
    this.areas(context, view.series);
    this.lines(context, colours);
    this.marks(context, colours);
    this.cursor(context, colours);
    this.drawOverview(colours, last);
  }

  /** Chooses for each column of pixels the moment with the most memory. */
  choose(columns) {
    const { xs, source, view } = this;
    const chosen = new Int32Array(columns);
    const reserved = new Float64Array(columns);
    const scale = (this.to - this.from) / columns;
    let next = firstAtLeast(xs, this.from);
    let current = Math.max(0, next - 1);
    for (let column = 0; column < columns; column++) {
      const end = this.from + scale * (column + 1);
      let best = current;
      let most = source.reserved[current];
      let isFirst = true;
      while (next < source.count && xs[next] <= end) {
        if (isFirst || view.total[next] > view.total[best]) best = next;
        isFirst = false;
        most = Math.max(most, source.mostReserved[next]);
        current = next++;
      }
      chosen[column] = best;
      reserved[column] = most;
    }
    this.columnReserved = reserved;
    return chosen;
  }

  grid(context, colours, most) {
    const { area } = this;
    const [unit, factor] = unitOf(most);
    const [values, step] = ticks(0, most, area.height / 52, factor);
    context.font = colours.font;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const value of values) {
      const y = Math.round(this.y(value)) + 0.5;
      context.strokeStyle = colours.faint;
      context.beginPath();
      context.moveTo(area.left, y);
      context.lineTo(area.left + area.width, y);
      context.stroke();
      context.fillStyle = colours.soft;
      context.fillText(`${tickText(value, step, factor)} ${unit}`, area.left - 8, y);
    }
    const isTime = this.view.axis === "time" && this.source.time;
    const span = this.to - this.from;
    const [name, size] = isTime ? timeUnit(this.to) : ["events", 1];
    const [marks, markStep] = ticks(this.from, this.to, area.width / 110, size);
    context.textBaseline = "top";
    marks.forEach((value, at) => {
      const x = area.left + ((value - this.from) / span) * area.width;
      context.textAlign = x > area.left + area.width - 40 ? "right" : at === 0 && x < area.left + 20 ? "left" : "center";
      const text = isTime ? tickText(value, markStep, size) : grouped(Math.round(value));
      context.fillText(at === marks.length - 1 || marks.length === 1 ? `${text} ${name}` : text, x, area.top + area.height + 8);
    });
  }

  areas(context, series) {
    const { area, columns } = this;
    const base = new Float64Array(columns.length);
    for (const { values, colour, hatched } of series) {
      context.fillStyle = hatched ? hatch(context, colour) : colour;
      for (let column = 0; column < columns.length; ) {
        const value = values[columns[column]];
        const below = base[column];
        // Columns of equal height are one rectangle.
        const start = column;
        do base[column++] += value;
        while (column < columns.length && values[columns[column]] === value && base[column] === below);
        if (value <= 0) continue;
        const top = this.y(below + value);
        context.fillRect(area.left + start, top, column - start, this.y(below) - top);
      }
    }
  }

  lines(context, colours) {
    const { area, source, view } = this;
    const draw = (value, colour, width) => {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.beginPath();
      this.columns.forEach((moment, column) => {
        const y = this.y(value(moment, column));
        if (column === 0) context.moveTo(area.left, y);
        context.lineTo(area.left + column, y);
        context.lineTo(area.left + column + 1, y);
      });
      context.stroke();
      context.lineWidth = 1;
    };
    const reserved = (_, column) => this.columnReserved[column];
    const active = (moment) => source.active[moment];
    if (view.quantity === "reserved") draw(active, colours.ink, 1.25);
    else draw(reserved, colours.ink, 1.5);
    const last = Math.max(0, firstAtLeast(this.xs, this.to * (1 + 1e-12)) - 1);
    const ends = [["reserved", source.reserved[last]], ["in use", source.active[last]]];
    if (area.right < 60) return;
    context.textAlign = "left";
    context.textBaseline = "middle";
    let [y0, y1] = ends.map(([, value]) => this.y(value));
    if (y1 - y0 < 32) [y0, y1] = [y0 - (32 - (y1 - y0)) / 2, y1 + (32 - (y1 - y0)) / 2];
    const bottom = area.top + area.height - 6;
    if (y1 > bottom) [y0, y1] = [Math.min(y0, bottom - 32), bottom];
    ends.forEach(([name, value], at) => {
      const y = at === 0 ? y0 : y1;
      context.fillStyle = colours.ink;
      context.font = colours.bold;
      context.fillText(bytes(value), area.left + area.width + 8, y - 7);
      context.fillStyle = colours.soft;
      context.font = colours.font;
      context.fillText(name, area.left + area.width + 8, y + 7);
    });
  }

  /** Draws the peak of reserved memory, failed requests, and marks of the program. */
  marks(context, colours) {
    const { area, source } = this;
    context.font = colours.font;
    const peak = this.xOf(source.peaks[0]);
    if (peak !== null) {
      const y = this.y(source.mostReserved[source.peaks[0]]);
      context.fillStyle = colours.ink;
      context.beginPath();
      context.arc(peak, y, 3.5, 0, 7);
      context.fill();
      const isRight = peak > area.left + area.width / 2;
      context.textAlign = isRight ? "right" : "left";
      context.textBaseline = "bottom";
      context.fillText(`peak ${bytes(source.mostReserved[source.peaks[0]])}`, peak + (isRight ? -7 : 7), y - 5);
    }
    for (const failure of source.failures) {
      const x = this.xOf(failure.moment);
      if (x === null) continue;
      context.strokeStyle = context.fillStyle = colours.alarm;
      context.setLineDash([3, 3]);
      context.beginPath();
      context.moveTo(x, area.top);
      context.lineTo(x, area.top + area.height);
      context.stroke();
      context.setLineDash([]);
      context.beginPath();
      context.moveTo(x - 6, area.top - 12);
      context.lineTo(x + 6, area.top - 12);
      context.lineTo(x, area.top - 2);
      context.fill();
    }
    context.fillStyle = colours.soft;
    for (const mark of source.marks) {
      const x = this.xOf(mark.moment);
      if (x !== null) context.fillRect(Math.round(x), area.top + area.height, 1, 6);
    }
  }

  cursor(context, colours) {
    const { area, view } = this;
    const line = (moment, colour, width) => {
      const x = moment === null ? null : this.xOf(moment);
      if (x === null) return;
      context.fillStyle = colour;
      context.fillRect(Math.round(x - width / 2), area.top, width, area.height);
    };
    line(view.hover, colours.soft, 1);
    line(view.moment, colours.accent, 2);
    if (view.drag) {
      const [one, other] = view.drag;
      context.globalAlpha = 0.18;
      context.fillStyle = colours.accent;
      context.fillRect(Math.min(one, other), area.top, Math.abs(one - other), area.height);
      context.globalAlpha = 1;
    }
  }

  /** Draws the whole time with the visible range. */
  drawOverview(colours, last) {
    const [context, width, height] = prepared(this.overview, 40);
    const { area, source, view } = this;
    const inner = Math.max(1, Math.floor(width - area.left - area.right));
    const most = Math.max(...sampled(source.mostReserved, inner)) || 1;
    context.clearRect(0, 0, width, height);
    const highest = (values, start, end) => {
      let found = 0;
      for (let at = start; at < end; at++) found = Math.max(found, values[at]);
      return found;
    };
    let next = 0;
    for (let column = 0; column < inner; column++) {
      const start = next;
      while (next < source.count && this.xs[next] <= (last * (column + 1)) / inner) next++;
      const [from, to] = next > start ? [start, next] : [Math.max(0, start - 1), Math.max(1, start)];
      const heights = [source.mostReserved, source.active].map((values) => (height * highest(values, from, to)) / most);
      context.fillStyle = colours.faint;
      context.fillRect(area.left + column, height - heights[0], 1.02, heights[0]);
      context.fillStyle = colours.others;
      context.fillRect(area.left + column, height - heights[1], 1.02, heights[1]);
    }
    const [from, to] = view.range.map((part) => area.left + part * inner);
    context.fillStyle = colours.surface;
    context.globalAlpha = 0.72;
    context.fillRect(area.left, 0, from - area.left, height);
    context.fillRect(to, 0, area.left + inner - to, height);
    context.globalAlpha = 1;
    context.strokeStyle = colours.accent;
    context.strokeRect(from + 0.5, 0.5, Math.max(2, to - from - 1), height - 1);
    this.inner = inner;
  }

  /** Returns the place of a moment in pixels, or null outside of the range. */
  xOf(moment) {
    const x = this.xs[moment];
    if (x < this.from || x > this.to) return null;
    return this.area.left + ((x - this.from) / (this.to - this.from)) * this.area.width;
  }

  /** Returns the moment that is drawn at a place in pixels. */
  momentAt(x) {
    const column = Math.round(x - this.area.left);
    return this.columns[Math.max(0, Math.min(this.columns.length - 1, column))];
  }

  /** Returns the part of the whole time at a place in pixels. */
  partAt(x) {
    const { area, view } = this;
    const inside = Math.max(0, Math.min(1, (x - area.left) / area.width));
    return view.range[0] + inside * (view.range[1] - view.range[0]);
  }
}

function width_of(canvas) {
  return canvas.clientWidth;
}

/** Returns the first place in an ascending list with at least a value. */
function firstAtLeast(values, wanted) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Returns the highest value of each of `count` parts. */
function sampled(values, count) {
  const found = new Array(Math.min(count, values.length)).fill(0);
  for (let at = 0; at < values.length; at++) {
    const place = Math.floor((at * found.length) / values.length);
    found[place] = Math.max(found[place], values[at]);
  }
  return found;
}

function timeUnit(us) {
  if (us >= 120e6) return ["min", 60e6];
  if (us >= 1e6) return ["s", 1e6];
  if (us >= 1e3) return ["ms", 1e3];
  return ["µs", 1];
}

/** Returns a pattern of slanted lines. */
function hatch(context, colour) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const inside = tile.getContext("2d");
  inside.globalAlpha = 0.35;
  inside.fillStyle = colour;
  inside.fillRect(0, 0, 6, 6);
  inside.globalAlpha = 1;
  inside.strokeStyle = colour;
  inside.lineWidth = 1.6;
  inside.beginPath();
  for (const shift of [-6, 0, 6]) {
    inside.moveTo(shift, 6);
    inside.lineTo(shift + 6, 0);
  }
  inside.stroke();
  return context.createPattern(tile, "repeat");
}
