// Reads the data of a device: see encode.rs for the form.

/** Decodes base64. */
function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const decoded = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) decoded[at] = letters.charCodeAt(at);
  return decoded;
}

async function unpacked(text) {
  const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Columns of differences between neighbours. */
const DIFFERENCES = new Set([
  "moment_state", "moment_time", "moment_reserved", "moment_most_reserved", "moment_holes",
  "block_birth", "block_address", "part_birth", "part_address",
]);

/** Columns of numbers that may exceed 32 bits. */
const LARGE = new Set([
  "moment_time", "moment_reserved", "moment_most_reserved", "moment_holes",
  "block_address", "block_bytes", "part_address", "part_bytes",
]);

/** Returns the header, with the columns by name. */
async function decoded(text) {
  const data = await unpacked(text);
  const length = new DataView(data.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + length)));
  const columns = {};
  let at = 4 + length;
  for (const [name, count] of header.columns) {
    const column = LARGE.has(name) ? new Float64Array(count) : new Uint32Array(count);
    const differs = DIFFERENCES.has(name);
    let last = 0;
    for (let entry = 0; entry < count; entry++) {
      let value = data[at++];
      if (value >= 128) {
        value -= 128;
        let factor = 128;
        let next;
        do {
          next = data[at++];
          value += (next & 127) * factor;
          factor *= 128;
        } while (next >= 128);
      }
      if (differs) {
        last += value % 2 === 1 ? -(value + 1) / 2 : value / 2;
        value = last;
      }
      column[entry] = value;
    }
    columns[name] = column;
  }
  return { ...header, columns };
}
