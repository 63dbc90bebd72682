//! Shares scarce places between users: a user with many leaves as many to others, and root, whose engines are the
//! machine's own, always finds some.

/// One place in this many is reserved for root.
const FOR_ROOT: usize = 4;

/// Whether a user may take one more of `all` places. `mine` are the user's, `roots` those of root, `taken` the
/// total. Places are never taken away, so a user with `n` of them gets another while more than `n` are free: a
/// single user gets half of them, the next half of the rest, and a user without any gets the last.
pub fn may_claim_slot(uid: u32, mine: usize, roots: usize, taken: usize, all: usize) -> bool {
    let free = all.saturating_sub(taken);
    let kept = if uid == 0 { 0 } else { (all / FOR_ROOT).saturating_sub(roots) };
    mine < free.saturating_sub(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each user gets of `all` places when each takes as many as possible, one after the other.
    fn taken(uids: &[u32], all: usize) -> Vec<usize> {
        let mut have: Vec<(u32, usize)> = Vec::new();
        for &uid in uids {
            let mut mine = 0;
            loop {
                let sum: usize = have.iter().map(|h| h.1).sum::<usize>() + mine;
                let roots = have.iter().filter(|h| h.0 == 0).map(|h| h.1).sum();
                if !may_claim_slot(uid, mine, if uid == 0 { mine } else { roots }, sum, all) {
                    break;
                }
                mine += 1;
            }
            have.push((uid, mine));
        }
        have.into_iter().map(|h| h.1).collect()
    }

    #[test]
    fn one_takes_no_more_than_half_and_root_always_finds_some() {
        assert_eq!(taken(&[0], 16), [8]);
        assert_eq!(taken(&[5, 6, 7, 8, 9, 10, 0], 16), [6, 3, 2, 1, 0, 0, 2]);
        assert_eq!(taken(&[0, 5, 6], 64), [32, 16, 8]);
        // Thousands of users of one attacker.
        let mut many: Vec<u32> = (1000..3000).collect();
        many.push(0);
        assert!(taken(&many, 64).pop().is_some_and(|n| n >= 8));
        assert!(taken(&many, 4).pop().is_some_and(|n| n >= 1));
    }
}
