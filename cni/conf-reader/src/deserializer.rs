// SPDX-License-Identifier: Apache-2.0
//! The `Deserializer` for a field.

use crate::{Field, Wrong, field::one_of};
use serde::{
    Deserializer,
    de::{
        DeserializeSeed, Error, MapAccess, SeqAccess, Unexpected, Visitor, value::StrDeserializer,
    },
    forward_to_deserialize_any,
};
use serde_json::Value;
use std::{iter::Peekable, vec::IntoIter};

type Result<T> = std::result::Result<T, Wrong>;

impl<'de> Deserializer<'de> for Field<'de> {
    type Error = Wrong;

    /// Passes a value of any type to the visitor. `serde_json` reads this value, without the rules of this crate.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let read = match self.object {
            Some(object) => object.deserialize_any(visitor),
            None => self.value.unwrap_or(&Value::Null).deserialize_any(visitor),
        };
        read.map_err(|error| Wrong::sentence(error.to_string()))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.is_there() {
            true => visitor.visit_some(self),
            false => visitor.visit_none(),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.value {
            Some(Value::Bool(value)) => visitor.visit_bool(*value),
            _ => Err(Wrong::must("must be true or false")),
        }
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.value.and_then(Value::as_u64) {
            Some(number) => visitor.visit_u64(number),
            None => Err(Wrong::invalid_type(Unexpected::Other("value"), &visitor)),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.value {
            Some(Value::String(text)) => visitor.visit_str(text),
            _ => Err(Wrong::must("must be a string")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        match self.value {
            Some(Value::String(text)) if words.contains(&text.as_str()) => {
                visitor.visit_enum(StrDeserializer::<Wrong>::new(text))
            }
            Some(value) if !value.is_string() => Err(Wrong::must("must be a string")),
            _ => Err(Wrong::must(one_of(words))),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_seq(Elements(self.list()?.into_iter()))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.object {
            Some(_) => self.deserialize_any(visitor),
            None => Err(Wrong::must("must be an object")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        if self.object.is_none() {
            return Err(Wrong::must("must be an object"));
        }
        let unknown = self.unknown(names).into_iter();
        let names = unknown.chain(names.iter().copied());
        let fields: Vec<_> = names.map(|name| (name, self.at(name))).collect();
        visitor.visit_map(Members(fields.into_iter().peekable()))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 u8 u16 u32 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct
        identifier
    }
}

/// The elements of a list, for serde.
struct Elements<'a>(IntoIter<Field<'a>>);

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = Wrong;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        self.0.next().map(|element| read(seed, element)).transpose()
    }
}

/// The fields of an object, for serde. First come the object's members that the Rust structure lacks, and then all
/// fields of the structure, even fields without a value.
struct Members<'a>(Peekable<IntoIter<(&'a str, Field<'a>)>>);

impl<'de> MapAccess<'de> for Members<'de> {
    type Error = Wrong;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        let Some((name, field)) = self.0.peek() else {
            return Ok(None);
        };
        let read = seed.deserialize(StrDeserializer::<Wrong>::new(name));
        read.map(Some).map_err(|wrong| field.placed(wrong))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value> {
        let field = self.0.next().map(|(_, field)| field);
        read(
            seed,
            field.ok_or_else(|| Wrong::sentence("there is no further value"))?,
        )
    }
}

fn read<'de, T: DeserializeSeed<'de>>(seed: T, field: Field<'de>) -> Result<T::Value> {
    let read = seed.deserialize(field.clone());
    read.map_err(|wrong| field.placed(wrong))
}
