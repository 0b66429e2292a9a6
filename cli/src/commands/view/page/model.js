// A device over time: what lives at which moment, by stack, line, stream, pool or state.

const NAMED_GROUPS = 7;
const OTHERS = "all others";

/** Returns the last two parts of a path, with the line if it is known. */
function shortPlace({ file, line }) {
  return file.split("/").slice(-2).join("/") + (line > 0 ? `:${line}` : "");
}

class Source {
  constructor(data) {
    const columns = data.columns;
    Object.assign(this, data);
    this.name = `${data.label}${data.is_one_of_several ? ` · device ${data.device}` : ""}`;
    this.count = columns.moment_state.length;
    this.state = columns.moment_state.map((state) => state + data.first_event);
    this.time = data.has_times ? columns.moment_time : null;
    this.reserved = columns.moment_reserved;
    this.mostReserved = columns.moment_most_reserved;
    this.holes = columns.moment_holes;
    this.blocks = lives(columns, "block");
    this.parts = lives(columns, "part");
    this.active = this.sum(this.blocks, () => true);
    this.pending = this.sum(this.blocks, () => true, (block) => this.blocks.freed[block]);
    this.prepareStacks(columns);
    this.heapNames = data.heaps.map(([stream, pool, kind]) => [streamName(stream), poolName(pool), kind]);
    this.groups = {};
  }

  prepareStacks(columns) {
    const lengths = columns.stack_length;
    this.stackStart = new Uint32Array(lengths.length + 1);
    for (let at = 0; at < lengths.length; at++) this.stackStart[at + 1] = this.stackStart[at] + lengths[at];
    // The last number stands for all stacks without a number of their own.
    this.stackCount = lengths.length + 1;
    this.lines = new Array(this.stackCount).fill(null);
  }

  /** Returns a frame by its number. */
  frame(number) {
    const { frame_name, frame_file, frame_line } = this.columns;
    return { name: this.texts[frame_name[number]], file: this.texts[frame_file[number]], line: frame_line[number] };
  }

  /** Returns the frames of a stack, the innermost first. Those that are not of the program are hidden. */
  frames(stack) {
    const { stack_frame, stack_hidden } = this.columns;
    const found = [];
    for (let at = this.stackStart[stack]; at < this.stackStart[stack + 1]; at++) {
      found.push({ ...this.frame(stack_frame[at]), hidden: stack_hidden[at] === 1 });
    }
    return found;
  }

  /** Returns the line of the program in which a stack allocates. */
  line(stack) {
    if (this.lines[stack] === null) {
      const own = this.columns.stack_own[stack] ?? 0;
      const frame = own > 0 ? this.frame(own - 1) : null;
      const note = this.notes[stack];
      const text = frame ? `${shortPlace(frame)} ${frame.name}`.trim() : "";
      this.lines[stack] = [note ? (frame ? `${note} · ` : note) : "", text].join("") || "no stack recorded";
    }
    return this.lines[stack];
  }

  /** Returns the stacks that contain every word, as a table of flags. */
  search(words) {
    // No word has a space, so a word lies in one frame or in the note.
    const { stack_frame } = this.columns;
    this.searchTexts ??= this.frameTexts();
    const found = new Uint8Array(this.stackCount).fill(1);
    for (const word of words) {
      const inFrame = Uint8Array.from(this.searchTexts, (text) => (text.includes(word) ? 1 : 0));
      for (let stack = 0; stack < this.stackCount; stack++) {
        if (found[stack] === 0) continue;
        let has = (this.notes[stack] ?? "").toLowerCase().includes(word) ? 1 : 0;
        for (let at = this.stackStart[stack]; has === 0 && at < this.stackStart[stack + 1]; at++) has = inFrame[stack_frame[at]];
        found[stack] = has;
      }
    }
    return found;
  }

  /** Returns the text of every frame in lower case. */
  frameTexts() {
    const { frame_name, frame_file, frame_line } = this.columns;
    return Array.from(frame_line, (line, at) => `${this.texts[frame_file[at]]}:${line} ${this.texts[frame_name[at]]}`.toLowerCase());
  }

  /** Sums the bytes of the selected lives at every moment, each from `from` to the end. */
  sum(all, selects, from = (life) => all.birth[life]) {
    const sums = new Float64Array(this.count + 1);
    for (let life = 0; life < all.count; life++) {
      if (!selects(life)) continue;
      sums[from(life)] += all.bytes[life];
      sums[all.death[life]] -= all.bytes[life];
    }
    for (let moment = 1; moment < this.count; moment++) sums[moment] += sums[moment - 1];
    return sums.subarray(0, this.count);
  }

  /** Sums the bytes of the lives whose stacks are found, at every moment. */
  matching(all, found) {
    const sums = new Float64Array(this.count + 1);
    const { birth, death, bytes, stack } = all;
    for (let life = 0; life < all.count; life++) {
      if (found[stack[life]] === 0) continue;
      sums[birth[life]] += bytes[life];
      sums[death[life]] -= bytes[life];
    }
    for (let moment = 1; moment < this.count; moment++) sums[moment] += sums[moment - 1];
    return sums.subarray(0, this.count);
  }

  /** Returns the names of the groups with a stack that is found. */
  matchingNames(kind, found) {
    const { items, ofItem, names } = this.grouping(kind, "live");
    const matching = new Set();
    if (items === this.blocks.stack) {
      const weights = this.weights(this.blocks, items, this.stackCount);
      for (let stack = 0; stack < this.stackCount; stack++) {
        if (found[stack] === 1 && weights[stack] >= 0) matching.add(names[ofItem[stack]]);
      }
      return matching;
    }
    for (let block = 0; block < this.blocks.count; block++) {
      if (found[this.blocks.stack[block]] === 1) matching.add(names[ofItem[items[block]]]);
    }
    return matching;
  }

  /** Returns work that makes later choices and searches quick, in short pieces. */
  ahead() {
    const groupings = ["line", "stack", "stream", "pool"].map((kind) => () => ranking([this], kind, "live"));
    const series = ["stack", "stream", "pool"].map((kind) => () => this.series(kind, "live", ranking([this], kind, "live")));
    return [() => (this.searchTexts ??= this.frameTexts()), ...groupings, ...series];
  }

  /** Returns the name of the group of a stack, or of a stream with a pool. */
  nameOf(kind, item) {
    if (kind === "stream") return this.heapNames[item][0];
    if (kind === "pool") return [this.heapNames[item][1], this.heapNames[item][2]].filter((part) => part).join(", ");
    return kind === "line" ? this.line(item) : this.stackName(item);
  }

  /** Returns the weight of each stack, or of each stream with a pool: its memory over time and at the peaks. -1 without
      memory. Every grouping is made of these, so that no grouping reads all blocks. */
  weights(all, items, count) {
    items.weights ??= (() => {
      const weights = new Float64Array(count).fill(-1);
      const { birth, death, bytes } = all;
      const [reserved, active] = this.peaks;
      for (let life = 0; life < all.count; life++) {
        const isAt = (peak) => (birth[life] <= peak && peak < death[life] ? 1 : 0);
        const share = (death[life] - birth[life]) / this.count;
        const weight = bytes[life] * (share + isAt(active) + 2 * isAt(reserved));
        weights[items[life]] = Math.max(0, weights[items[life]]) + weight;
      }
      return weights;
    })();
    return items.weights;
  }

  /** Returns a name that tells stacks apart: the line, and a number if several stacks share the line. */
  stackName(stack) {
    if (!this.stackNames) {
      const seen = new Map();
      this.stackNames = Array.from({ length: this.stackCount }, (_, at) => {
        const line = this.line(at);
        const count = (seen.get(line) ?? 0) + 1;
        seen.set(line, count);
        return count === 1 ? line : `${line} (${count})`;
      });
    }
    return this.stackNames[stack];
  }

  /** Returns the item of each life (its stack, or its stream with a pool), the number of the group of each item, and the
      names of all groups with their weights. */
  grouping(kind, quantity) {
    const key = `${kind} ${quantity}`;
    if (this.groups[key]) return this.groups[key];
    const all = quantity === "reserved" ? this.parts : this.blocks;
    const isHeap = kind === "stream" || kind === "pool";
    const items = isHeap ? all.heap : all.stack;
    const weightOf = this.weights(all, items, isHeap ? this.heapNames.length : this.stackCount);
    const [numbers, names, weights] = [new Map(), [], []];
    const ofItem = new Uint32Array(weightOf.length);
    for (let item = 0; item < weightOf.length; item++) {
      if (weightOf[item] < 0) continue;
      const name = this.nameOf(kind, item);
      let number = numbers.get(name);
      if (number === undefined) {
        number = names.length;
        numbers.set(name, number);
        names.push(name);
        weights.push(0);
      }
      ofItem[item] = number;
      weights[number] += weightOf[item];
    }
    return (this.groups[key] = { items, ofItem, names, weights, all, series: new Map() });
  }

  /** Returns the sum of each group at every moment. `order` has the names of the groups of their own. */
  series(kind, quantity, order) {
    const { items, ofItem, names, all, series } = this.grouping(kind, quantity);
    const key = order.join("\n");
    if (series.has(key)) return series.get(key);
    const places = names.map((name) => {
      const place = order.indexOf(name);
      return place < 0 ? order.length : place;
    });
    const placeOf = Uint32Array.from(ofItem, (number) => places[number] ?? order.length);
    // The sums lie side by side in one array.
    const width = this.count + 1;
    const sums = new Float64Array((order.length + 1) * width);
    const { birth, death, bytes } = all;
    for (let life = 0; life < all.count; life++) {
      const start = placeOf[items[life]] * width;
      sums[start + birth[life]] += bytes[life];
      sums[start + death[life]] -= bytes[life];
    }
    const found = [...order, OTHERS].map((_, place) => sums.subarray(place * width, place * width + this.count));
    for (const sum of found) for (let at = 1; at < this.count; at++) sum[at] += sum[at - 1];
    series.clear();
    series.set(key, found);
    return found;
  }

  /** Returns the memory by state at every moment: allocated, pending, in holes, idle. */
  states() {
    const made = (value) => Float64Array.from({ length: this.count }, (_, at) => Math.max(0, value(at)));
    const allocated = made((at) => this.active[at] - this.pending[at]);
    const idle = made((at) => this.reserved[at] - this.active[at] - this.holes[at]);
    return [allocated, this.pending, this.holes, idle];
  }

  /** Returns the numbers of all lives at a moment. The latest list is kept. */
  at(all, moment) {
    if (all.moment === moment) return all.found;
    const { birth, death } = all;
    const found = [];
    for (let life = 0; life < all.count && birth[life] <= moment; life++) {
      if (death[life] > moment) found.push(life);
    }
    [all.moment, all.found] = [moment, found];
    return found;
  }

  /** Returns the segments at a moment by heap and address, each with its blocks by address. */
  segments(moment) {
    const { parts, blocks } = this;
    const byPlace = (all) => (one, other) => all.address[one] - all.address[other];
    const held = [...this.at(blocks, moment)].sort(byPlace(blocks));
    const segments = [];
    let next = 0;
    for (const part of [...this.at(parts, moment)].sort(byPlace(parts))) {
      const [start, end] = [parts.address[part], parts.address[part] + parts.bytes[part]];
      while (next < held.length && blocks.address[held[next]] < start) next++;
      const inside = [];
      let used = 0;
      while (next < held.length && blocks.address[held[next]] < end) {
        used += blocks.bytes[held[next]];
        inside.push(held[next++]);
      }
      const segment = { part, start, end, heap: parts.heap[part], blocks: inside, used };
      segment.gaps = this.gaps(segment);
      const sum = (key) => segment.gaps.reduce((total, gap) => total + gap[key], 0);
      [segment.idle, segment.holes] = [sum("idle"), sum("holes")];
      segment.free = segment.idle + segment.holes;
      segments.push(segment);
    }
    return segments.sort((one, other) => one.heap - other.heap || one.start - other.start);
  }

  /** Returns the gaps between the blocks of a segment: ends, the wholly free pages inside, and the bytes that can and
      cannot go back to the device. */
  gaps({ part, start, end, heap, blocks }) {
    const isSmall = this.heapNames[heap][2] === "small";
    const page = this.parts.expandable[part] ? this.pages[isSmall ? 0 : 1] : end - start;
    const gaps = [];
    const add = (from, to) => {
      if (from >= to) return;
      const first = start + Math.ceil((from - start) / page) * page;
      const last = start + Math.floor((to - start) / page) * page;
      const idle = Math.max(0, last - first);
      gaps.push({ from, to, first, last, idle, holes: to - from - idle });
    };
    let at = start;
    for (const block of blocks) {
      const address = this.blocks.address[block];
      add(at, Math.min(address, end));
      at = Math.max(at, address + this.blocks.bytes[block]);
    }
    add(at, end);
    return gaps;
  }

  /** Returns the first moment at or after a number of events. */
  momentOf(state) {
    let [low, high] = [0, this.count - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.state[middle] < state) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** Returns the columns of blocks or parts, with the moments of the end and of the free. */
function lives(columns, name) {
  const birth = columns[`${name}_birth`];
  const [life, pending, heap] = [columns[`${name}_life`], columns[`${name}_pending`], columns[`${name}_heap`]];
  return {
    count: birth.length,
    birth,
    death: birth.map((moment, at) => moment + life[at]),
    freed: birth.map((moment, at) => moment + life[at] - pending[at]),
    address: columns[`${name}_address`],
    bytes: columns[`${name}_bytes`],
    stack: columns[`${name}_stack`],
    heap: heap.map((value) => value >> 1),
    expandable: heap.map((value) => value & 1),
  };
}

function streamName(stream) {
  return stream === "0" ? "default stream" : `stream ${stream}`;
}

function poolName(pool) {
  if (!pool) return "unknown pool";
  if (pool[0] === 0 && pool[1] === 0) return "default pool";
  return pool[0] === 0 ? `private pool ${pool[1]}` : `private pool ${pool[0]}, ${pool[1]}`;
}

/** Returns the names of the groups with the most memory in all sources, at most seven. */
function ranking(sources, kind, quantity) {
  const weights = new Map();
  for (const source of sources) {
    const grouping = source.grouping(kind, quantity);
    grouping.names.forEach((name, at) => weights.set(name, (weights.get(name) ?? 0) + grouping.weights[at]));
  }
  const names = [...weights.keys()].sort((one, other) => weights.get(other) - weights.get(one));
  return names.slice(0, NAMED_GROUPS);
}
