// Reads a profile with the package pprof-format, and prints its samples as JSON.
//
// NODE_PATH=NODE_MODULES node pprof_profile.js PROFILE

const { readFileSync } = require('fs')
const { gunzipSync } = require('zlib')
const { Profile } = require('pprof-format')

const profile = Profile.decode(gunzipSync(readFileSync(process.argv[2])))
const text = (at) => profile.stringTable.strings[Number(at)]
const byId = (list) => new Map(list.map((part) => [Number(part.id), part]))
const [functions, locations, mappings] = [profile.function, profile.location, profile.mapping].map(byId)
const types = profile.sampleType.map((type) => `${text(type.type)} ${text(type.unit)}`)
const frame = (id) => {
  const location = locations.get(Number(id))
  if (!mappings.get(Number(location.mappingId)).hasFunctions) throw new Error('a mapping without functions')
  const [line] = location.line
  const of = functions.get(Number(line.functionId))
  return `${text(of.filename)}:${line.line} ${text(of.name)}`
}
const samples = profile.sample.map((sample) => ({
  stack: sample.locationId.map(frame),
  values: sample.value.map(Number),
  labels: Object.fromEntries(sample.label.map((label) => [text(label.key), Number(label.num)])),
}))
if (text(0) !== '') throw new Error('the first text is not empty')
const time = Number(profile.timeNanos)
console.log(JSON.stringify({ types, standard: text(profile.defaultSampleType), time, samples }))
