//! Usual rows of many jobs: those of one kind differ in numbers, which are taken column by column.

use super::arithmetic::BLOCK;
use super::block::Lanes;
use super::gate::{LanesOf, lanes_of};
use super::numbers::NumberColumn;
use super::recipe::{LaneRecipe, RecipePerLane, ScalarRecipe};
use super::stages::check;
use crate::bulk::columns::{InputColumn, InputTable, MISSING};
use crate::bulk::results::{ResultColumn, ResultSlice};
use crate::input::{FieldKind, Input, Value};

/// The jobs of a fleet, by what they have in common.
#[derive(Debug)]
pub(crate) struct RecipeGroups<'a> {
    keys: Vec<Key<'a>>,
    /// By the key of a row; `None` where they are not usual.
    recipes: Vec<Option<ScalarRecipe>>,
    /// Their numbers where a row has none.
    common: ScalarRecipe,
    numbers: Vec<(LanesOf, NumberColumn<'a>)>,
}

/// A column of which each value makes another kind.
#[derive(Debug)]
struct Key<'a> {
    values: Vec<&'a Value>,
    column: KeyColumn<'a>,
}

#[derive(Debug)]
enum KeyColumn<'a> {
    Codes(&'a [u32]),
    Flags(&'a [i64]),
}

/// The values of a column of flags.
const FLAGS: [Value; 4] = [Value::Int(0), Value::Int(1), Value::Missing, Value::Illegal];

impl<'a> RecipeGroups<'a> {
    /// `None` where there are more kinds than it pays to prepare for so many rows, or none is usual.
    pub fn of(shared: &Input, jobs: &'a InputTable<'a>, rows: usize) -> Option<RecipeGroups<'a>> {
        let mut common = shared.clone();
        let (mut numbers, mut fields, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        for (field, data) in &jobs.columns {
            let column = match data {
                InputColumn::Codes(codes, values) => {
                    Key { values: values.iter().collect(), column: KeyColumn::Codes(codes) }
                }
                InputColumn::Ints(values) if field.kind() == FieldKind::Flag => {
                    Key { values: FLAGS.iter().collect(), column: KeyColumn::Flags(values) }
                }
                _ => Key { values: Vec::new(), column: KeyColumn::Flags(&[]) },
            };
            if let Some(column) = NumberColumn::of(*field, data) {
                common.set(*field, &Value::Missing);
                numbers.push((lanes_of(*field)?, column));
            } else if column.values.is_empty() {
                return None;
            } else {
                fields.push(*field);
                keys.push(column);
            }
        }
        // The rows give the values that are missing now.
        common.fault = shared.fault;

        let count = keys.iter().try_fold(1_usize, |count, key| count.checked_mul(key.values.len()))?;
        if count > rows / 8 {
            return None;
        }
        let recipes: Vec<_> = (0..count)
            .map(|mut key| {
                let mut input = common.clone();
                for (field, column) in fields.iter().zip(&keys).rev() {
                    input.set(*field, column.values[key % column.values.len()]);
                    key /= column.values.len();
                }
                ScalarRecipe::of_group(&input)
            })
            .collect();
        let common = recipes.iter().flatten().next()?.clone();
        Some(RecipeGroups { keys, recipes, common, numbers })
    }

    /// The kind of each row.
    fn keys(&self, jobs: &[u32]) -> [usize; BLOCK] {
        let mut keys = [0; BLOCK];
        for Key { values, column } in &self.keys {
            let pairs = keys.iter_mut().zip(jobs.iter().map(|job| *job as usize));
            match column {
                KeyColumn::Codes(codes) => {
                    pairs.for_each(|(key, job)| *key = *key * values.len() + codes[job] as usize);
                }
                KeyColumn::Flags(flags) => pairs.for_each(|(key, job)| {
                    let value = match flags[job] {
                        0 => 0,
                        1 => 1,
                        MISSING => 2,
                        _ => 3,
                    };
                    *key = *key * values.len() + value;
                }),
            }
        }
        keys
    }
}

/// A recipe for each row.
#[derive(Debug)]
pub(crate) struct OwnRecipes(Box<RecipePerLane>);

impl OwnRecipes {
    pub fn new() -> OwnRecipes {
        OwnRecipes(Box::new(LaneRecipe::new()))
    }

    /// Takes these rows' recipes, and leaves rows that are not usual.
    pub fn set(&mut self, groups: &RecipeGroups<'_>, jobs: &[u32], lanes: &mut Lanes) {
        let recipe = &mut *self.0;
        recipe.share(&groups.common);
        for (lane, key) in groups.keys(jobs).into_iter().enumerate().take(jobs.len()) {
            match &groups.recipes[key] {
                Some(kind) => recipe.set(lane, kind),
                None => lanes.left[lane] = 1,
            }
        }
        for (lanes_of, column) in &groups.numbers {
            column.take(jobs, lanes_of(recipe), &mut lanes.left);
        }
    }

    /// Plans these rows, as [`Lanes::plan`] does.
    pub fn plan(
        &self,
        lanes: &mut Lanes,
        rows: usize,
        out: &mut [(ResultColumn, ResultSlice<'_>)],
        at: usize,
    ) -> Vec<usize> {
        check(lanes, &self.0, rows.next_multiple_of(8));
        lanes.plan(&self.0, rows, out, at)
    }
}
