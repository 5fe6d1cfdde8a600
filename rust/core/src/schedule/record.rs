//! How a form comes in: records of named fields, whatever language they were declared in.
//!
//! The declaration itself is Python's (`isobatch.schedules.form`). Each part of a schedule reads its own
//! fields by name, in its own file, so that adding a field or a shape touches no list here. A field that is
//! missing or holds something else is an error that names it.

use std::sync::Arc;

use super::error::ScheduleError;

/// The value of a field.
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
    /// The sort of part, such as the name of a shape.
    pub name: Arc<str>,
    /// The names of its fields, which all parts of a sort share.
    pub names: Arc<[String]>,
    /// The value of each field.
    pub entries: Vec<Entry>,
}

type Read<T> = Result<T, ScheduleError>;

impl Record {
    fn entry(&self, field: &'static str) -> Read<&Entry> {
        let entry = self.names.iter().position(|name| name == field).and_then(|at| self.entries.get(at));
        entry.ok_or_else(|| ScheduleError::new(field, format!("must be given in {:?}", self.name)))
    }

    /// A number.
    pub(crate) fn number(&self, field: &'static str) -> Read<f64> {
        self.maybe(field)?.ok_or_else(|| wrong(field, "a number", &Entry::Nothing))
    }

    /// A number, or none.
    pub(crate) fn maybe(&self, field: &'static str) -> Read<Option<f64>> {
        match self.entry(field)? {
            Entry::Number(number) => Ok(Some(*number)),
            Entry::Nothing => Ok(None),
            entry => Err(wrong(field, "a number", entry)),
        }
    }

    /// A yes or no.
    pub(crate) fn flag(&self, field: &'static str) -> Read<bool> {
        match self.entry(field)? {
            Entry::Flag(flag) => Ok(*flag),
            entry => Err(wrong(field, "true or false", entry)),
        }
    }

    /// Numbers.
    pub(crate) fn numbers(&self, field: &'static str) -> Read<&[f64]> {
        match self.entry(field)? {
            Entry::Numbers(numbers) => Ok(numbers),
            Entry::List(list) if list.is_empty() => Ok(&[]),
            entry => Err(wrong(field, "a list of numbers", entry)),
        }
    }

    /// Pairs of numbers.
    pub(crate) fn pairs(&self, field: &'static str) -> Read<Vec<(f64, f64)>> {
        let pair = |entry: &Entry| match entry {
            Entry::Numbers(numbers) if numbers.len() == 2 => Ok((numbers[0], numbers[1])),
            entry => Err(wrong(field, "pairs of numbers", entry)),
        };
        self.list(field, "pairs of numbers")?.iter().map(pair).collect()
    }

    /// Parts, each read by `read`.
    pub(crate) fn parts<T>(&self, field: &'static str, read: impl Fn(&Record) -> Read<T>) -> Read<Vec<T>> {
        let part = |entry: &Entry| match entry {
            Entry::Record(record) => read(record),
            entry => Err(wrong(field, "parts of a form", entry)),
        };
        self.list(field, "a list of parts")?.iter().map(part).collect()
    }

    fn list(&self, field: &'static str, expected: &str) -> Read<&[Entry]> {
        match self.entry(field)? {
            Entry::List(list) => Ok(list),
            entry => Err(wrong(field, expected, entry)),
        }
    }

    /// A part, or none.
    pub(crate) fn part(&self, field: &'static str) -> Read<Option<&Record>> {
        match self.entry(field)? {
            Entry::Record(record) => Ok(Some(record)),
            Entry::Nothing => Ok(None),
            entry => Err(wrong(field, "a part of a form", entry)),
        }
    }

    /// A part that must be there.
    pub(crate) fn needed(&self, field: &'static str) -> Read<&Record> {
        self.part(field)?.ok_or_else(|| wrong(field, "a part of a form", &Entry::Nothing))
    }
}

fn wrong(field: &'static str, expected: &str, got: &Entry) -> ScheduleError {
    let got = match got {
        Entry::Nothing => "nothing",
        Entry::Flag(_) => "true or false",
        Entry::Number(_) => "a number",
        Entry::Numbers(_) => "numbers",
        Entry::List(_) => "a list",
        Entry::Record(_) => "a part of a form",
    };
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
