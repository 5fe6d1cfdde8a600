//! The clusters, which the jobs' choices share.

use crate::bulk::fleet::{Fleet, Pairs};
use crate::bulk::lanes::Prepared;
use crate::forecast::Fitted;
use crate::input::Cluster;

/// No more clusters are prepared: each takes half a kilobyte.
const MOST: usize = 1 << 16;

/// A legal cluster, and the profile that fits its GPUs.
#[derive(Debug)]
pub(super) struct LegalCluster<'a> {
    pub cluster: Cluster,
    pub fitted: Option<Fitted<'a>>,
}

/// The clusters that every job meets.
pub(super) struct SharedClusters<'a> {
    /// None where a cluster is not legal.
    pub legal: Vec<Option<LegalCluster<'a>>>,
    pub prepared: Prepared<'a>,
}

impl<'a> SharedClusters<'a> {
    /// `None` where jobs meet clusters of their own, or a setting differs between the clusters.
    pub fn of(fleet: &'a Fleet<'_>) -> Option<SharedClusters<'a>> {
        if !matches!(fleet.pairs, Pairs::Crossed)
            || fleet.clusters.rows > MOST
            || fleet.shared.fault.is_some()
        {
            return None;
        }
        let prepared = Prepared::for_single_jobs(fleet)?;
        let mut input = [fleet.shared.clone()];
        let legal = (0_u32..)
            .take(fleet.clusters.rows)
            .map(|cluster| {
                input[0].fault = None;
                fleet.clusters.apply(&[cluster], &mut input);
                fleet.gpus_of(cluster).filter(|_| input[0].fault.is_none())?;
                let cluster = input[0].cluster.clone();
                Some(LegalCluster { fitted: Fitted::of(&cluster, fleet.workloads), cluster })
            })
            .collect();
        Some(SharedClusters { legal, prepared })
    }
}
