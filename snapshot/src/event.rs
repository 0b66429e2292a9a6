//! Reads events key by key. A snapshot has millions of events.

use crate::lenient::{Maybe, Pair};
use crate::model::{Details, Event, Text};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

/// Frequent texts of events. Each refers to a constant and takes no memory.
const KNOWN: [&str; 13] = [
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
    "user_defined",
    "N/A",
    "",
];

thread_local! {
    /// The details read last. The next event usually has the same details.
    static LATEST: RefCell<Option<Arc<Details>>> = const { RefCell::new(None) };
}

/// A text, usually from [`KNOWN`].
struct KnownText(Text);

impl<'de> Deserialize<'de> for KnownText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = KnownText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<KnownText, E> {
                let known = KNOWN.iter().find(|&&known| known == text);
                Ok(KnownText(known.map_or_else(|| Cow::Owned(text.to_owned()), |known| Cow::Borrowed(*known))))
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<KnownText, E> {
                let text = str::from_utf8(bytes);
                text.map_err(|_| E::custom("a text is not UTF-8")).and_then(|text| self.visit_str(text))
            }
        }
        deserializer.deserialize_str(Reader)
    }
}

/// A key of an event. A known key takes no memory.
enum Key {
    Action,
    Addr,
    DeviceFree,
    Size,
    Stream,
    TimeUs,
    CompileContext,
    UserMetadata,
    PoolId,
    SpilledSize,
    Frames,
    Other(String),
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(match text {
                    "action" => Key::Action,
                    "addr" => Key::Addr,
                    "device_free" => Key::DeviceFree,
                    "size" => Key::Size,
                    "stream" => Key::Stream,
                    "time_us" => Key::TimeUs,
                    "compile_context" => Key::CompileContext,
                    "user_metadata" => Key::UserMetadata,
                    "pool_id" => Key::PoolId,
                    "spilled_size" => Key::SpilledSize,
                    "frames" => Key::Frames,
                    _ => Key::Other(text.to_owned()),
                })
            }
        }
        deserializer.deserialize_identifier(Reader)
    }
}

impl Event {
    /// Reads an event from a dictionary.
    pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Event;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Event, A::Error> {
                let (mut event, mut details, mut action) = (Event::default(), Details::default(), None);
                let text = |known: Option<KnownText>| known.map(|known| known.0);
                let int = |found: Maybe<i64>| found.0;
                while let Some(key) = map.next_key()? {
                    match key {
                        Key::Action => action = Some(map.next_value::<KnownText>()?.0),
                        Key::Addr => event.addr = int(map.next_value()?).map(i64::cast_unsigned),
                        Key::DeviceFree => details.device_free = int(map.next_value()?),
                        Key::Size => event.size = int(map.next_value()?).unwrap_or(0),
                        Key::Stream => event.stream = int(map.next_value()?).unwrap_or(0),
                        Key::TimeUs => event.time_us = int(map.next_value()?),
                        Key::CompileContext => details.compile_context = text(map.next_value()?),
                        Key::UserMetadata => details.user_metadata = text(map.next_value()?),
                        Key::PoolId => details.pool_id = map.next_value::<Pair>()?.0,
                        Key::SpilledSize => details.spilled_size = int(map.next_value()?).map(i64::cast_unsigned),
                        Key::Frames => event.frames = map.next_value()?,
                        Key::Other(key) => _ = details.other.insert(key, map.next_value()?),
                    }
                }
                event.action = action.ok_or_else(|| A::Error::missing_field("action"))?;
                event.details = shared(details);
                Ok(event)
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// Returns the details of an event, shared with the previous event if both are equal.
fn shared(details: Details) -> Option<Arc<Details>> {
    if details == Details::default() {
        return None;
    }
    LATEST.with_borrow_mut(|latest| {
        if latest.as_deref() != Some(&details) {
            *latest = Some(Arc::new(details));
        }
        latest.clone()
    })
}
