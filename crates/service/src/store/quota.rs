//! Which recordings to remove so that the rest stays within the quota: first those that are too old, then the
//! oldest of the user who exceeds an equal share the most. Nobody else can push out what a user has within that
//! share.

use crate::rules::RuleUser;

/// A user; None: a recording of an earlier version, whose name has no user.
pub type TraceOwner = Option<u32>;

/// The relevant facts about a recording.
#[derive(Debug, Clone, Copy)]
pub struct StoredRecording {
    pub owner: TraceOwner,
    /// Bytes counted for it.
    pub bytes: u64,
    /// It is being written, and stays.
    pub writing: bool,
    /// It is removed however much room there is.
    pub old: bool,
}

/// One user's part.
struct UserShare {
    owner: TraceOwner,
    bytes: u64,
    /// Positions of those that may be removed, the oldest last.
    left: Vec<usize>,
}

/// Positions in `items` (oldest first) of the recordings to remove so that a new one of this user has the `wanted`
/// bytes. None: there is no room, and nothing is removed.
pub fn going(items: &[StoredRecording], quota: u64, wanted: Option<(TraceOwner, u64)>) -> Option<Vec<usize>> {
    let mut parts: Vec<UserShare> = Vec::new();
    let mut gone = Vec::new();
    for (i, item) in items.iter().enumerate().rev() {
        let part = part_of(&mut parts, item.owner);
        if item.old && !item.writing {
            gone.push(i);
            continue;
        }
        part.bytes = part.bytes.saturating_add(item.bytes);
        if !item.writing {
            part.left.push(i);
        }
    }
    if let Some((owner, bytes)) = wanted {
        let part = part_of(&mut parts, owner);
        part.bytes = part.bytes.saturating_add(bytes);
    }
    parts.retain(|part| part.bytes > 0);
    let mut total = parts.iter().map(|p| p.bytes).fold(0, u64::saturating_add);
    let share = quota / (parts.len() as u64).max(1);
    while total > quota {
        let asks =
            |part: &&mut UserShare| wanted.is_none_or(|(owner, _)| part.bytes > share || part.owner == owner);
        let most = parts.iter_mut().filter(|p| !p.left.is_empty()).filter(asks);
        // On a tie, the user with the oldest recording.
        let most = most.max_by_key(|p| (p.bytes, usize::MAX - p.left.last().unwrap_or(&usize::MAX)));
        let Some((part, i)) = most.and_then(|part| part.left.pop().map(|i| (part, i))) else {
            return if wanted.is_some() { None } else { Some(gone) };
        };
        let bytes = items.get(i).map_or(0, |item| item.bytes);
        part.bytes = part.bytes.saturating_sub(bytes);
        total = total.saturating_sub(bytes);
        gone.push(i);
    }
    Some(gone)
}

fn part_of(parts: &mut Vec<UserShare>, owner: TraceOwner) -> &mut UserShare {
    let at = parts.iter().position(|part| part.owner == owner).unwrap_or(parts.len());
    if at == parts.len() {
        parts.push(UserShare { owner, bytes: 0, left: Vec::new() });
    }
    &mut parts[at]
}

/// The user who answers for a uid: itself, or the owner of its subordinate range (subuid(5)). Otherwise a user
/// would have as many shares as subordinate uids.
pub fn answerable(uid: u32) -> u32 {
    // Without the file there are none.
    among(uid, &std::fs::read_to_string("/etc/subuid").unwrap_or_default(), &|name| {
        RuleUser::of(name).ok().map(|u| u.uid)
    })
}

fn among(uid: u32, subuid: &str, of_name: &dyn Fn(&str) -> Option<u32>) -> u32 {
    let holder = |line: &str| {
        let mut fields = line.split(':');
        let (name, start, count) =
            (fields.next()?, fields.next()?.parse::<u32>().ok()?, fields.next()?.trim().parse::<u32>().ok()?);
        (uid.checked_sub(start)? < count).then(|| of_name(name)).flatten()
    };
    subuid.lines().find_map(holder).unwrap_or(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(owner: u32, bytes: u64) -> StoredRecording {
        StoredRecording { owner: Some(owner), bytes, writing: false, old: false }
    }

    fn writing(owner: u32, bytes: u64) -> StoredRecording {
        StoredRecording { writing: true, ..item(owner, bytes) }
    }

    #[test]
    fn a_flood_pushes_out_its_own() {
        // Root has four old ones; the other user's arrive one after the other.
        let mut items = vec![item(0, 100); 4];
        for _ in 0..50 {
            let gone = going(&items, 1000, Some((Some(1000), 100))).expect("room");
            for i in gone {
                assert_eq!(items[i].owner, Some(1000), "another's goes");
                items.remove(i);
            }
            items.push(item(1000, 100));
            assert!(items.iter().map(|i| i.bytes).sum::<u64>() <= 1000);
        }
        assert_eq!(items.iter().filter(|i| i.owner == Some(0)).count(), 4);
    }

    #[test]
    fn who_has_more_than_a_share_makes_room() {
        let items = [item(1, 300), item(0, 100), item(1, 300), item(0, 100), item(1, 200)];
        assert_eq!(going(&items, 1000, Some((Some(0), 200))), Some(vec![0]));
        // Two users have half each; a third arrives, and both have more than a third.
        let items = [item(0, 250), item(1, 250), item(0, 250), item(1, 250)];
        assert_eq!(going(&items, 1000, Some((Some(2), 300))), Some(vec![0, 1]));
        // A user with less than a share loses its own if nobody has more than a share.
        let items = [item(0, 100), item(1, 100), writing(1, 300), writing(0, 300)];
        assert_eq!(going(&items, 1000, Some((Some(1), 250))), Some(vec![1]));
    }

    #[test]
    fn where_there_is_no_room_nothing_goes() {
        // The writer has all the room, and the other user is within its share.
        let items = [item(0, 100), writing(1, 300), writing(1, 300), item(1, 1)];
        assert_eq!(going(&items, 1000, Some((Some(1), 300))), Some(vec![3]));
        assert_eq!(going(&items, 800, Some((Some(1), 300))), None);
        // A reduced quota is enforced with what can be removed.
        assert_eq!(going(&items, 600, None), Some(vec![3, 0]));
        assert_eq!(going(&[writing(1, 300)], 100, None), Some(vec![]));
    }

    #[test]
    fn those_of_nobody_known_have_a_share_of_their_own() {
        let unknown = StoredRecording { owner: None, ..item(0, 100) };
        let items = [unknown, item(5, 600), unknown, unknown];
        assert_eq!(going(&items, 1000, Some((Some(5), 200))), Some(vec![1]));
        assert_eq!(going(&[unknown; 10], 1000, Some((Some(5), 200))), Some(vec![0, 1]));
    }

    #[test]
    fn what_is_too_old_goes_first() {
        let old = |owner| StoredRecording { old: true, ..item(owner, 100) };
        let items = [old(0), StoredRecording { writing: true, ..old(1) }, item(2, 900)];
        assert_eq!(going(&items, 1000, None), Some(vec![0]));
    }

    #[test]
    fn subordinates_are_their_users() {
        let names = |name: &str| match name {
            "llm" => Some(990),
            number => number.parse().ok(),
        };
        let text = "llm:100000:65536\n1001:165536:65536\nbroken\ngone:300000:10\nllm:4294967295:4294967295\n";
        let of = |uid| among(uid, text, &names);
        assert_eq!((of(100_000), of(165_535), of(165_536), of(99_999)), (990, 990, 1001, 99_999));
        assert_eq!((of(300_001), of(0), among(7, "", &names)), (300_001, 0, 7));
    }
}
