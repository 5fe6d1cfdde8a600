//! How a form comes in: records of named fields, whatever language they were declared in.
//!
//! The declaration itself is Python's (`isobatch.schedules.form`). Each part of a schedule reads its own fields by
//! name, in its own file, so that adding a field or a shape touches no list here.

use std::sync::Arc;

use super::error::ScheduleError;

/// What a field holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// Nothing was given.
    Nothing,
    /// A yes or no.
    Flag(bool),
    /// A number.
    Number(f64),
    /// Only numbers.
    Numbers(Vec<f64>),
    /// Entries of any sort.
    List(Vec<Entry>),
    /// A part with fields of its own.
    Record(Record),
}

/// A part of a form: its name, where there are several sorts of it, and its fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Which sort of part it is, such as the name of a shape.
    pub name: Arc<str>,
    /// The names of its fields, which all parts of a sort share.
    pub names: Arc<[String]>,
    /// What each field holds.
    pub entries: Vec<Entry>,
}

impl Record {
    fn entry(&self, field: &'static str) -> Result<&Entry, ScheduleError> {
        let found = self.names.iter().position(|name| name == field).and_then(|at| self.entries.get(at));
        found.ok_or_else(|| ScheduleError::new(field, format!("must be given in {:?}", self.name)))
    }

    /// A number.
    ///
    /// # Errors
    /// When the field is missing or holds no number.
    pub fn number(&self, field: &'static str) -> Result<f64, ScheduleError> {
        self.maybe(field)?.ok_or_else(|| wrong(field, "a number", "nothing"))
    }

    /// A number, or none.
    ///
    /// # Errors
    /// When the field is missing or holds anything else.
    pub fn maybe(&self, field: &'static str) -> Result<Option<f64>, ScheduleError> {
        match self.entry(field)? {
            Entry::Number(number) => Ok(Some(*number)),
            Entry::Nothing => Ok(None),
            other => Err(wrong(field, "a number", other.sort())),
        }
    }

    /// A yes or no.
    ///
    /// # Errors
    /// When the field is missing or holds anything else.
    pub fn flag(&self, field: &'static str) -> Result<bool, ScheduleError> {
        match self.entry(field)? {
            Entry::Flag(flag) => Ok(*flag),
            other => Err(wrong(field, "true or false", other.sort())),
        }
    }

    /// Numbers.
    ///
    /// # Errors
    /// When the field is missing or holds anything else.
    pub fn numbers(&self, field: &'static str) -> Result<&[f64], ScheduleError> {
        match self.entry(field)? {
            Entry::Numbers(numbers) => Ok(numbers),
            Entry::List(list) if list.is_empty() => Ok(&[]),
            other => Err(wrong(field, "a list of numbers", other.sort())),
        }
    }

    /// Pairs of numbers.
    ///
    /// # Errors
    /// When the field is missing or holds anything else.
    pub fn pairs(&self, field: &'static str) -> Result<Vec<(f64, f64)>, ScheduleError> {
        let pair = |entry: &Entry| match entry {
            Entry::Numbers(numbers) if numbers.len() == 2 => Ok((numbers[0], numbers[1])),
            other => Err(wrong(field, "pairs of numbers", other.sort())),
        };
        match self.entry(field)? {
            Entry::List(list) => list.iter().map(pair).collect(),
            other => Err(wrong(field, "pairs of numbers", other.sort())),
        }
    }

    /// Parts, each read by `read`.
    ///
    /// # Errors
    /// When the field is missing or holds anything else, or a part cannot be read.
    pub fn parts<T>(
        &self,
        field: &'static str,
        read: impl Fn(&Record) -> Result<T, ScheduleError>,
    ) -> Result<Vec<T>, ScheduleError> {
        let part = |entry: &Entry| match entry {
            Entry::Record(record) => read(record),
            other => Err(wrong(field, "parts of a form", other.sort())),
        };
        match self.entry(field)? {
            Entry::List(list) => list.iter().map(part).collect(),
            other => Err(wrong(field, "a list of parts", other.sort())),
        }
    }

    /// A part, or none.
    ///
    /// # Errors
    /// When the field is missing or holds anything else.
    pub fn part(&self, field: &'static str) -> Result<Option<&Record>, ScheduleError> {
        match self.entry(field)? {
            Entry::Record(record) => Ok(Some(record)),
            Entry::Nothing => Ok(None),
            other => Err(wrong(field, "a part of a form", other.sort())),
        }
    }

    /// A part that must be there.
    ///
    /// # Errors
    /// When it is not.
    pub fn needed(&self, field: &'static str) -> Result<&Record, ScheduleError> {
        self.part(field)?.ok_or_else(|| wrong(field, "a part of a form", "nothing"))
    }
}

impl Entry {
    fn sort(&self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Flag(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Numbers(_) => "numbers",
            Self::List(_) => "a list",
            Self::Record(_) => "a part of a form",
        }
    }
}

fn wrong(field: &'static str, expected: &str, got: &str) -> ScheduleError {
    ScheduleError::new(field, format!("must be {expected}, got {got}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_another_sort_is_named() {
        let names = ["a".to_owned(), "b".to_owned()].into();
        let record =
            Record { name: "power".into(), names, entries: vec![Entry::Number(1.0), Entry::Nothing] };
        assert_eq!(record.number("a"), Ok(1.0));
        assert_eq!(record.maybe("b"), Ok(None));
        for error in [
            record.flag("a").map(drop),
            record.number("b").map(drop),
            record.numbers("a").map(drop),
            record.pairs("a").map(drop),
            record.needed("b").map(drop),
            record.parts("a", |_| Ok(())).map(drop),
            record.number("c").map(drop),
        ] {
            assert!(error.is_err());
        }
    }
}
