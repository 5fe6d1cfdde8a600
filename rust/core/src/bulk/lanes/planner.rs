//! Rows planned together, where they are usual.

use std::ops::Range;

use super::arithmetic::BLOCK;
use super::block::Lanes;
use super::clusters::ClusterShapes;
use super::groups::{OwnRecipes, RecipeGroups};
use super::recipe::ScalarRecipe;
use crate::bulk::fleet::{Fleet, INPUTS, Pairs};
use crate::bulk::results::{ResultColumn, ResultSlice};
use crate::input::Input;

/// Rows of one job from which on planning them by themselves takes less time than among others, and than one
/// by one.
const WORTH: usize = 12;
const WORTH_ALONE: usize = 4;

/// Shapes and recipes of usual rows; without `groups`, only the rows of one job are planned together.
pub struct Prepared<'a> {
    shapes: ClusterShapes,
    groups: Option<RecipeGroups<'a>>,
}

impl<'a> Prepared<'a> {
    /// `None` where a setting differs between the clusters, or there is a profile to plan by.
    pub fn of(fleet: &'a Fleet<'_>) -> Option<Prepared<'a>> {
        if !fleet.workloads.is_empty() {
            return None;
        }
        let alone = Prepared::for_single_jobs(fleet)?;
        Some(Prepared { groups: RecipeGroups::of(&fleet.shared, &fleet.jobs, fleet.rows()), ..alone })
    }

    /// Without groups, and whether or not there is a profile: what depends on that is not planned here.
    pub fn for_single_jobs(fleet: &Fleet<'_>) -> Option<Prepared<'a>> {
        Some(Prepared { shapes: ClusterShapes::of(&fleet.shared, &fleet.clusters)?, groups: None })
    }
}

/// Usual rows, planned together.
pub struct LanePlanner<'a> {
    prepared: &'a Prepared<'a>,
    input: [Input; 1],
    /// The job that the recipe is of: its next rows need not ask again.
    job: Option<u32>,
    recipe: Option<ScalarRecipe>,
    own: OwnRecipes,
    lanes: Lanes,
}

impl<'a> LanePlanner<'a> {
    pub fn new(fleet: &Fleet<'_>, prepared: &'a Prepared<'_>) -> LanePlanner<'a> {
        LanePlanner {
            prepared,
            input: [fleet.shared.clone()],
            job: None,
            recipe: None,
            own: OwnRecipes::new(),
            lanes: Lanes::new(),
        }
    }

    /// Plans usual rows from `start` on, at most `rows`, which are at `at` in the columns. Gives how many
    /// were looked at, and of these those that are left; `None` for all.
    pub fn plan(
        &mut self,
        fleet: &Fleet<'_>,
        start: usize,
        rows: usize,
        out: &mut [(ResultColumn, ResultSlice<'_>)],
        at: usize,
    ) -> (usize, Option<Vec<usize>>) {
        let of_job = rows_of_job(fleet, start, rows);
        let (count, left) = match &self.prepared.groups {
            Some(groups) if of_job < WORTH => {
                let count = BLOCK.min(rows);
                (count, Some(self.of_many_jobs(groups, fleet, start..start + count, out, at)))
            }
            None if of_job < WORTH_ALONE => (INPUTS.min(rows), None),
            _ => (of_job, self.of_one_job(fleet, start..start + of_job, out, at)),
        };
        (count, left.map(|left| left.into_iter().map(|i| start + i).collect()))
    }

    fn of_one_job(
        &mut self,
        fleet: &Fleet<'_>,
        rows: Range<usize>,
        out: &mut [(ResultColumn, ResultSlice<'_>)],
        at: usize,
    ) -> Option<Vec<usize>> {
        let (job, cluster) = fleet.pair(rows.start);
        if self.job != Some(job) {
            self.input[0].fault = fleet.shared.fault;
            fleet.jobs.apply(&[job], &mut self.input);
            (self.job, self.recipe) = (Some(job), ScalarRecipe::of(&self.input[0]));
        }
        let recipe = self.recipe.as_ref()?;
        let shapes = &self.prepared.shapes;
        match fleet.pairs {
            Pairs::Crossed => self.lanes.set(shapes, (cluster..).take(rows.len())),
            Pairs::Named { clusters, .. } => self.lanes.set(shapes, clusters[rows.clone()].iter().copied()),
        }
        Some(self.lanes.plan(recipe, rows.len(), out, at))
    }

    fn of_many_jobs(
        &mut self,
        groups: &RecipeGroups<'_>,
        fleet: &Fleet<'_>,
        rows: Range<usize>,
        out: &mut [(ResultColumn, ResultSlice<'_>)],
        at: usize,
    ) -> Vec<usize> {
        let count = rows.len();
        let mut crossed = ([0; BLOCK], [0; BLOCK]);
        let (jobs, clusters) = match fleet.pairs {
            Pairs::Named { jobs, clusters } => (&jobs[rows.clone()], &clusters[rows]),
            Pairs::Crossed => {
                for (i, row) in rows.enumerate() {
                    (crossed.0[i], crossed.1[i]) = fleet.pair(row);
                }
                (&crossed.0[..count], &crossed.1[..count])
            }
        };
        self.lanes.set(&self.prepared.shapes, clusters.iter().copied());
        self.own.set(groups, jobs, &mut self.lanes);
        self.own.plan(&mut self.lanes, count, out, at)
    }
}

/// How many rows from `start` on are of one job, up to a block.
fn rows_of_job(fleet: &Fleet<'_>, start: usize, rows: usize) -> usize {
    let most = rows.min(BLOCK);
    match fleet.pairs {
        Pairs::Crossed => most.min(fleet.clusters.rows - start % fleet.clusters.rows),
        Pairs::Named { jobs, .. } => {
            jobs[start..start + most].iter().take_while(|job| **job == jobs[start]).count()
        }
    }
}
