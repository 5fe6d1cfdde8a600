//! Rows planned together, where they are plain.

use std::ops::Range;

use super::{Column, Fleet, Out, Pairs, TOGETHER};
use crate::input::Input;
use crate::plain::{BLOCK, Each, Kinds, Lanes, One, Sites};

/// Rows of one job from which on planning them by themselves takes less time than among others, and than one by one.
const WORTH: usize = 8;
const WORTH_ALONE: usize = 4;

/// What plain rows are planned from; without `kinds`, only those of one job are planned together.
pub(super) struct Ground<'a> {
    sites: Sites,
    kinds: Option<Kinds<'a>>,
}

impl<'a> Ground<'a> {
    /// `None` where a setting differs between the clusters.
    pub fn of(fleet: &'a Fleet<'_>) -> Option<Ground<'a>> {
        let sites = Sites::of(&fleet.shared, &fleet.clusters)?;
        Some(Ground { sites, kinds: Kinds::of(&fleet.shared, &fleet.jobs, fleet.rows()) })
    }
}

/// Plain rows, planned together.
pub(super) struct Together<'a> {
    ground: &'a Ground<'a>,
    input: [Input; 1],
    /// The job that the recipe is of: its next rows need not ask again.
    job: Option<u32>,
    recipe: Option<One>,
    each: Each,
    lanes: Lanes,
}

impl<'a> Together<'a> {
    pub fn new(fleet: &Fleet<'_>, ground: &'a Ground<'_>) -> Together<'a> {
        Together {
            ground,
            input: [fleet.shared.clone()],
            job: None,
            recipe: None,
            each: Each::new(),
            lanes: Lanes::new(),
        }
    }

    /// Plans plain rows from `start` on, at most `rows`, which stand at `at` in the columns. Gives how many were looked at, and
    /// of these those that are left; `None` for all.
    pub fn plan(
        &mut self,
        fleet: &Fleet<'_>,
        start: usize,
        rows: usize,
        out: &mut [(Column, Out<'_>)],
        at: usize,
    ) -> (usize, Option<Vec<usize>>) {
        let of_job = fleet.rows_of_job(start, rows);
        let (count, left) = match &self.ground.kinds {
            Some(kinds) if of_job < WORTH => {
                let count = BLOCK.min(rows);
                (count, Some(self.of_many_jobs(kinds, fleet, start..start + count, out, at)))
            }
            None if of_job < WORTH_ALONE => (TOGETHER.min(rows), None),
            _ => (of_job, self.of_one_job(fleet, start..start + of_job, out, at)),
        };
        (count, left.map(|left| left.into_iter().map(|i| start + i).collect()))
    }

    fn of_one_job(
        &mut self,
        fleet: &Fleet<'_>,
        rows: Range<usize>,
        out: &mut [(Column, Out<'_>)],
        at: usize,
    ) -> Option<Vec<usize>> {
        let (job, cluster) = fleet.pair(rows.start);
        if self.job != Some(job) {
            self.input[0].fault = fleet.shared.fault;
            fleet.jobs.apply(&[job], &mut self.input);
            (self.job, self.recipe) = (Some(job), One::of(&self.input[0]));
        }
        let recipe = self.recipe.as_ref()?;
        let sites = &self.ground.sites;
        match fleet.pairs {
            Pairs::Crossed => self.lanes.set(sites, (cluster..).take(rows.len())),
            Pairs::Named { clusters, .. } => self.lanes.set(sites, clusters[rows.clone()].iter().copied()),
        }
        Some(self.lanes.plan(recipe, rows.len(), out, at))
    }

    fn of_many_jobs(
        &mut self,
        kinds: &Kinds<'_>,
        fleet: &Fleet<'_>,
        rows: Range<usize>,
        out: &mut [(Column, Out<'_>)],
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
        self.lanes.set(&self.ground.sites, clusters.iter().copied());
        self.each.set(kinds, jobs, &mut self.lanes);
        self.each.plan(&mut self.lanes, count, out, at)
    }
}
