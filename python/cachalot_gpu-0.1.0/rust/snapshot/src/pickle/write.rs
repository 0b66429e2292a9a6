//! Writes any serde value as a pickle, entry by entry.

use super::error::Error;
use super::opcode::{
    APPENDS, BINFLOAT, BININT, BININT1, BININT2, BINUNICODE, EMPTY_DICT, EMPTY_LIST, LONG_BINGET, LONG_BINPUT, LONG1,
    MARK, NEWFALSE, NEWTRUE, NONE, PROTO, SETITEMS, STOP, TUPLE, TUPLE2,
};
use crate::shared::SHARED;
use serde::ser::{
    self, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple, SerializeTupleStruct, Serializer,
};
use std::collections::HashMap;
use std::io::Write;

/// The protocol, known to every reader of snapshots.
const PROTOCOL: u8 = 2;
/// Entries added to a list or dictionary at a time, as in Python. The page's reader passes a batch
/// as the arguments of a call, and a call allows few more than 60,000 arguments.
const BATCH: usize = 1000;

/// Writes a value as a pickle. The writer should be buffered.
///
/// Sequences become lists, tuples stay tuples, maps and structures become dictionaries, units and
/// `None` become `None`.
///
/// # Errors
/// The errors of the writer, and a value without a counterpart among Python's plain values, for
/// example a variant with fields.
pub fn to_writer<W: Write>(to: W, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
    let mut pickler = Pickler { to, shared: HashMap::new() };
    pickler.put(&[PROTO, PROTOCOL])?;
    value.serialize(&mut pickler)?;
    pickler.put(&[STOP])
}

struct Pickler<W> {
    to: W,
    /// The memo number of each shared value, by address.
    shared: HashMap<usize, u32>,
}

impl<W: Write> Pickler<W> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.to.write_all(bytes).map_err(Error::Io)
    }

    /// Writes a whole number in the shortest form.
    fn put_int(&mut self, value: i128) -> Result<(), Error> {
        if let Ok(small) = u8::try_from(value) {
            return self.put(&[BININT1, small]);
        }
        if let Ok(short) = u16::try_from(value) {
            let [low, high] = short.to_le_bytes();
            return self.put(&[BININT2, low, high]);
        }
        if let Ok(int) = i32::try_from(value) {
            self.put(&[BININT])?;
            return self.put(&int.to_le_bytes());
        }
        // As few bytes as possible, with the sign in the highest bit.
        let bits = 128 - if value < 0 { value.leading_ones() } else { value.leading_zeros() };
        let length = bits as usize / 8 + 1;
        self.put(&[LONG1, length as u8])?;
        self.put(&value.to_le_bytes()[..length])
    }

    fn put_text(&mut self, text: &str) -> Result<(), Error> {
        let length = u32::try_from(text.len()).map_err(|_| Error::Unsupported("a text of 4 GiB"))?;
        self.put(&[BINUNICODE])?;
        self.put(&length.to_le_bytes())?;
        self.put(text.as_bytes())
    }
}

/// A list or dictionary during writing. The entries follow in batches.
struct Compound<'a, W> {
    pickler: &'a mut Pickler<W>,
    /// Number of entries since the last mark.
    parts: usize,
    /// The operation at the end of a batch.
    end: u8,
}

impl<W: Write> Compound<'_, W> {
    /// Prepares for the next entry.
    fn begin(&mut self) -> Result<(), Error> {
        if self.parts == BATCH {
            self.pickler.put(&[self.end])?;
            self.parts = 0;
        }
        if self.parts == 0 {
            self.pickler.put(&[MARK])?;
        }
        self.parts += 1;
        Ok(())
    }

    fn finish(self) -> Result<(), Error> {
        // Without entries there is no mark to end.
        if self.parts == 0 { Ok(()) } else { self.pickler.put(&[self.end]) }
    }
}

impl<W: Write> SerializeSeq for Compound<'_, W> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.begin()?;
        value.serialize(&mut *self.pickler)
    }

    fn end(self) -> Result<(), Error> {
        self.finish()
    }
}

impl<W: Write> SerializeMap for Compound<'_, W> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.begin()?;
        key.serialize(&mut *self.pickler)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut *self.pickler)
    }

    fn end(self) -> Result<(), Error> {
        self.finish()
    }
}

impl<W: Write> SerializeStruct for Compound<'_, W> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        self.begin()?;
        self.pickler.put_text(key)?;
        value.serialize(&mut *self.pickler)
    }

    fn end(self) -> Result<(), Error> {
        self.finish()
    }
}

/// A tuple during writing. A tuple of two entries needs no mark.
struct Tuple<'a, W> {
    pickler: &'a mut Pickler<W>,
    end: u8,
}

impl<W: Write> SerializeTuple for Tuple<'_, W> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut *self.pickler)
    }

    fn end(self) -> Result<(), Error> {
        self.pickler.put(&[self.end])
    }
}

impl<W: Write> SerializeTupleStruct for Tuple<'_, W> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut *self.pickler)
    }

    fn end(self) -> Result<(), Error> {
        self.pickler.put(&[self.end])
    }
}

macro_rules! ints {
    ($($function:ident: $type:ty),*) => {
        $(fn $function(self, value: $type) -> Result<(), Error> {
            self.put_int(i128::from(value))
        })*
    };
}

impl<'a, W: Write> Serializer for &'a mut Pickler<W> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Compound<'a, W>;
    type SerializeTuple = Tuple<'a, W>;
    type SerializeTupleStruct = Tuple<'a, W>;
    type SerializeTupleVariant = ser::Impossible<(), Error>;
    type SerializeMap = Compound<'a, W>;
    type SerializeStruct = Compound<'a, W>;
    type SerializeStructVariant = ser::Impossible<(), Error>;

    ints!(serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64);
    ints!(serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64);

    fn serialize_bool(self, value: bool) -> Result<(), Error> {
        self.put(&[if value { NEWTRUE } else { NEWFALSE }])
    }

    fn serialize_f32(self, value: f32) -> Result<(), Error> {
        self.serialize_f64(f64::from(value))
    }

    fn serialize_f64(self, value: f64) -> Result<(), Error> {
        self.put(&[BINFLOAT])?;
        self.put(&value.to_be_bytes())
    }

    fn serialize_char(self, value: char) -> Result<(), Error> {
        self.put_text(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), Error> {
        self.put_text(value)
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<(), Error> {
        Err(Error::Unsupported("bytes"))
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.put(&[NONE])
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.put(&[NONE])
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.put(&[NONE])
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Error> {
        self.put_text(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<(), Error> {
        if name != SHARED {
            return value.serialize(self);
        }
        let address = std::ptr::from_ref(value).cast::<()>().addr();
        if let Some(number) = self.shared.get(&address) {
            let number = number.to_le_bytes();
            self.put(&[LONG_BINGET])?;
            return self.put(&number);
        }
        let number = self.shared.len() as u32;
        value.serialize(&mut *self)?;
        self.shared.insert(address, number);
        self.put(&[LONG_BINPUT])?;
        self.put(&number.to_le_bytes())
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), Error> {
        Err(Error::Unsupported("a variant with a field"))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Compound<'a, W>, Error> {
        self.put(&[EMPTY_LIST])?;
        Ok(Compound { pickler: self, parts: 0, end: APPENDS })
    }

    fn serialize_tuple(self, length: usize) -> Result<Tuple<'a, W>, Error> {
        if length == 2 {
            return Ok(Tuple { pickler: self, end: TUPLE2 });
        }
        self.put(&[MARK])?;
        Ok(Tuple { pickler: self, end: TUPLE })
    }

    fn serialize_tuple_struct(self, _: &'static str, length: usize) -> Result<Tuple<'a, W>, Error> {
        self.serialize_tuple(length)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<ser::Impossible<(), Error>, Error> {
        Err(Error::Unsupported("a variant with fields"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Compound<'a, W>, Error> {
        self.put(&[EMPTY_DICT])?;
        Ok(Compound { pickler: self, parts: 0, end: SETITEMS })
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Compound<'a, W>, Error> {
        self.serialize_map(None)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<ser::Impossible<(), Error>, Error> {
        Err(Error::Unsupported("a variant with fields"))
    }
}
