// Formats numbers for people.

const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

/** Formats bytes in the largest unit that is not above them. */
function bytes(value) {
  const size = Math.abs(value);
  for (const [unit, factor] of UNITS) {
    if (size >= factor) return `${(value / factor).toFixed(2)} ${unit}`;
  }
  return `${value} B`;
}

/** Formats a difference of bytes with its sign. */
function difference(value) {
  return value === 0 ? "0 B" : (value > 0 ? "+" : "−") + bytes(Math.abs(value));
}

function grouped(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

function percent(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "0 %";
}

function plural(count, one) {
  return `${grouped(count)} ${one}${count === 1 ? "" : "s"}`;
}

/** Formats microseconds. */
function duration(us) {
  const size = Math.abs(us);
  if (size >= 120e6) return `${(us / 60e6).toFixed(2)} min`;
  if (size >= 1e6) return `${(us / 1e6).toFixed(3)} s`;
  if (size >= 1e3) return `${(us / 1e3).toFixed(3)} ms`;
  return `${us} µs`;
}

/** Returns round values from 0 up to `most`: 1, 2 or 5 times a power of ten of a fitting unit. */
function ticks(from, to, count, unit) {
  const least = (to - from) / Math.max(1, count) / unit;
  const power = 10 ** Math.floor(Math.log10(least || 1));
  const step = unit * power * ([1, 2, 5, 10].find((factor) => factor * power >= least) ?? 10);
  const values = [];
  for (let at = Math.ceil(from / step) * step; at <= to + step * 1e-6; at += step) values.push(at);
  return [values, step];
}

/** Returns the largest unit of bytes that is not above a value, as name and factor. */
function unitOf(value) {
  return UNITS.find(([, factor]) => value >= factor) ?? ["B", 1];
}

/** Formats a value of an axis without superfluous zeros. */
function tickText(value, step, factor) {
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step / factor) + 1e-9)));
  return (value / factor).toFixed(digits);
}
