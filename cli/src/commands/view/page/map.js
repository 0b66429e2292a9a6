// The segments with their blocks at a moment. The segments of a heap are put end to end, by address,
// and folded into rows: equal areas are equal numbers of bytes.

const ROW = 15;
const ROW_GAP = 3;
const HEADING = 26;
const MOST_ROWS = 30;

/** Returns how many bytes a row has: a power of two, so that all rows fit. */
function rowOf(total) {
  let row = 2 ** 21;
  while (total / row > MOST_ROWS) row *= 2;
  return row;
}

class MemoryMap {
  constructor(canvas) {
    this.canvas = canvas;
  }

  /** Draws the segments of a moment, `row` bytes in a row. `colourOf` gives the colour of a block, or
   * null for a block in the background. */
  draw(source, moment, segments, { colourOf, selected, row }) {
    this.source = source;
    this.moment = moment;
    this.row = row;
    const heaps = this.heaps(segments);
    const rows = heaps.reduce((sum, heap) => sum + Math.ceil(heap.bytes / row), 0);
    const height = Math.max(60, rows * (ROW + ROW_GAP) + heaps.length * HEADING + 4);
    const [context, width] = prepared(this.canvas, height);
    const colours = theme();
    this.placed = [];
    this.width = width;
    context.clearRect(0, 0, width, height);
    const patterns = { pending: hatch(context, colours.ink), idle: hatch(context, colours.others) };
    let top = 0;
    for (const heap of heaps) {
      this.heading(context, colours, heap, top, width);
      top += HEADING;
      let offset = 0;
      for (const segment of heap.segments) {
        this.segment(context, colours, patterns, { segment, offset, top, colourOf, selected });
        offset += segment.end - segment.start;
      }
      const height = Math.ceil(heap.bytes / row) * (ROW + ROW_GAP);
      this.placed.push({ top, height, heap });
      top += height;
    }
    if (segments.length === 0) {
      context.fillStyle = colours.soft;
      context.font = colours.font;
      context.fillText("No memory is reserved at this moment.", 2, 24);
    }
  }

  /** Returns the segments by heap, with sums. */
  heaps(segments) {
    const heaps = new Map();
    for (const segment of segments) {
      let heap = heaps.get(segment.heap);
      if (!heap) heaps.set(segment.heap, (heap = { number: segment.heap, segments: [], bytes: 0, used: 0, holes: 0, idle: 0 }));
      heap.segments.push(segment);
      heap.bytes += segment.end - segment.start;
      heap.used += segment.used;
      heap.holes += segment.holes;
      heap.idle += segment.idle;
    }
    return [...heaps.values()].sort((one, other) => other.bytes - one.bytes);
  }

  heading(context, colours, heap, top, width) {
    const [stream, pool, kind] = this.source.heapNames[heap.number];
    const y = top + HEADING - 6;
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    context.font = colours.bold;
    context.fillStyle = colours.ink;
    const name = `${stream}, ${pool}${kind ? `, ${kind} blocks` : ""}`;
    context.fillText(name, 0, y);
    const shift = context.measureText(name).width + 10;
    context.font = colours.font;
    context.fillStyle = colours.soft;
    const parts = [`${bytes(heap.bytes)} in ${plural(heap.segments.length, "segment")}`];
    if (heap.holes > 0) parts.push(`${bytes(heap.holes)} in holes`);
    if (heap.idle > 0) parts.push(`${bytes(heap.idle)} idle`);
    while (parts.length > 1 && shift + context.measureText(parts.join(" · ")).width > width) parts.pop();
    context.fillText(parts.join(" · "), shift, y);
  }

  /** Draws a segment with its blocks. */
  segment(context, colours, patterns, { segment, offset, top, colourOf, selected }) {
    const { blocks } = this.source;
    const piece = (from, to, colour, alpha) => {
      context.globalAlpha = alpha;
      if (to > from) this.fill(context, top, offset + from - segment.start, to - from, colour);
      context.globalAlpha = 1;
    };
    for (const { from, to, first, last, idle } of segment.gaps) {
      const [left, right] = idle > 0 ? [first, last] : [to, to];
      piece(from, left, colours.states[2], 0.7);
      piece(left, right, patterns.idle, 0.5);
      piece(right, to, colours.states[2], 0.7);
    }
    for (const block of segment.blocks) {
      const start = offset + blocks.address[block] - segment.start;
      const colour = colourOf(block);
      if (colour === null) {
        // The colour of free memory must not show through.
        this.fill(context, top, start, blocks.bytes[block], colours.surface);
        context.globalAlpha = 0.45;
      }
      this.fill(context, top, start, blocks.bytes[block], colour ?? colours.others);
      context.globalAlpha = 1;
      if (blocks.freed[block] <= this.moment) this.fill(context, top, start, blocks.bytes[block], patterns.pending);
      if (selected === block) this.fill(context, top, start, blocks.bytes[block], colours.ink);
    }
    // A gap at the start of a segment.
    const { x, y } = this.place(top, offset);
    context.fillStyle = colours.surface;
    context.fillRect(x - 0.75, y, 1.5, ROW);
  }

  place(top, offset) {
    const row = Math.floor(offset / this.row);
    return { x: ((offset - row * this.row) / this.row) * this.width, y: top + row * (ROW + ROW_GAP) };
  }

  /** Fills a range of bytes, over as many rows as needed. */
  fill(context, top, offset, length, colour) {
    context.fillStyle = colour;
    const end = offset + length;
    for (let at = offset; at < end; ) {
      const next = Math.min(end, (Math.floor(at / this.row) + 1) * this.row);
      const { x, y } = this.place(top, at);
      const width = ((next - at) / this.row) * this.width;
      // A thin line of the background stays visible between blocks, unless they are too narrow.
      context.fillRect(x, y, width > 3 ? width - 0.6 : Math.max(width, 0.5), ROW);
      at = next;
    }
  }

  /** Returns segment and block at a place in pixels, or null. */
  hit(x, y) {
    const group = this.placed.find(({ top, height }) => y >= top && y < top + height);
    if (!group || x < 0 || x > this.width) return null;
    const row = Math.floor((y - group.top) / (ROW + ROW_GAP));
    let offset = row * this.row + (x / this.width) * this.row;
    for (const segment of group.heap.segments) {
      const length = segment.end - segment.start;
      if (offset < length) {
        const { address, bytes: size } = this.source.blocks;
        const at = segment.start + offset;
        const block = segment.blocks.find((one) => address[one] <= at && at < address[one] + size[one]);
        return { segment, block: block ?? null, address: at };
      }
      offset -= length;
    }
    return null;
  }
}

/** Returns the largest hole of segments: free memory that cannot go back to the device, in one piece. */
function largestHole(segments) {
  const pieces = ({ from, to, first, last, idle }) => (idle > 0 ? [first - from, to - last] : [to - from]);
  return segments.reduce((most, segment) => Math.max(most, ...segment.gaps.flatMap(pieces)), 0);
}

/** Returns the largest free piece of segments, whether it can go back to the device or not. */
function largestFree(segments) {
  return segments.reduce((most, segment) => Math.max(most, ...segment.gaps.map(({ from, to }) => to - from)), 0);
}
