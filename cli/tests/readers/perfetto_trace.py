"""Reads a trace with Perfetto's published schema, and prints what it shows as JSON.

python3 perfetto_trace.py TRACE, with the packages perfetto and protobuf on PYTHONPATH.
"""

import json
import sys

from google.protobuf import unknown_fields
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema


def check_known(message):
    """Fails if a message has a field that the schema does not have."""
    unknown = [field.field_number for field in unknown_fields.UnknownFieldSet(message)]
    assert not unknown, (type(message).__name__, unknown)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                check_known(part)


def path(tracks, track):
    """Returns the names of a track and the tracks above it."""
    names = []
    while track:
        assert track in tracks, f"a track without a description: {track}"
        names.append(tracks[track].name)
        track = tracks[track].parent_uuid
    return "/".join(reversed(names))


def main():
    """Reads the trace that the command line names."""
    with open(sys.argv[1], "rb") as file:
        trace = schema.Trace.FromString(file.read())
    check_known(trace)
    tracks, counters, slices, instants, open_slices, last = {}, {}, [], [], {}, {}
    clocks = set()
    sequences = set()
    for packet in trace.packet:
        sequences.add(packet.trusted_packet_sequence_id)
        kind = packet.WhichOneof("data")
        if kind == "clock_snapshot":
            assert packet.clock_snapshot.primary_trace_clock == 1, "REALTIME"
        elif kind == "track_descriptor":
            descriptor = packet.track_descriptor
            assert descriptor.uuid not in tracks, "a track described twice"
            tracks[descriptor.uuid] = descriptor
        elif kind == "track_event":
            event = packet.track_event
            clocks.add(packet.timestamp_clock_id)
            track, time = event.track_uuid, packet.timestamp
            assert time >= last.get(track, 0), "the times of a track never go back"
            last[track] = time
            if event.type == schema.TrackEvent.TYPE_COUNTER:
                assert tracks[track].counter.unit == schema.CounterDescriptor.UNIT_SIZE_BYTES
                values = counters.setdefault(path(tracks, track), [])
                values.append([time, event.counter_value])
            elif event.type == schema.TrackEvent.TYPE_SLICE_BEGIN:
                open_slices.setdefault(track, []).append((time, event))
            elif event.type == schema.TrackEvent.TYPE_SLICE_END:
                start, begin = open_slices[track].pop()
                notes = {note.name: note.uint_value or note.pointer_value or note.string_value for note in begin.debug_annotations}
                slices.append({"track": path(tracks, track), "name": begin.name, "start": start, "end": time, "notes": notes})
            elif event.type == schema.TrackEvent.TYPE_INSTANT:
                instants.append({"track": path(tracks, track), "name": event.name, "time": time})
            else:
                raise AssertionError(f"an event of type {event.type}")
        else:
            raise AssertionError(f"a packet with {kind}")
    assert not any(open_slices.values()), "a slice without an end"
    assert clocks <= {1} and len(sequences) == 1
    report = {
        name: {"first": values[0][1], "last": values[-1][1], "most": max(value for _, value in values),
               "start": values[0][0], "end": values[-1][0], "count": len(values)}
        for name, values in counters.items()
    }
    print(json.dumps({"counters": report, "slices": slices, "instants": instants}))


main()
