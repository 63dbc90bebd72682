//! Which recordings go so that the others stay within the quota: those that are too old, and then the oldest of the user who has
//! the most beyond an equal share. What a user has within that is nobody else's to push out. Uses `rules`.

use super::rules::User;

/// A user; None: a recording of an earlier version, whose name does not tell.
pub type Owner = Option<u32>;

/// A recording, as far as this is concerned.
#[derive(Debug, Clone, Copy)]
pub struct Item {
    pub owner: Owner,
    /// What it counts.
    pub bytes: u64,
    /// It is being written, and stays.
    pub writing: bool,
    /// It goes whatever room there is.
    pub old: bool,
}

/// What a user has.
struct Part {
    owner: Owner,
    bytes: u64,
    /// Places of those that may go, the oldest last.
    left: Vec<usize>,
}

/// The places of those that go, of `items` from the oldest on, so that there are `wanted` bytes for a new one of this user.
/// None: there is no room, and nothing is to go.
pub fn going(items: &[Item], quota: u64, wanted: Option<(Owner, u64)>) -> Option<Vec<usize>> {
    let mut parts: Vec<Part> = Vec::new();
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
            |part: &&mut Part| wanted.is_none_or(|(owner, _)| part.bytes > share || part.owner == owner);
        let most = parts.iter_mut().filter(|p| !p.left.is_empty()).filter(asks);
        // Of those with as much, the one with the oldest.
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

fn part_of(parts: &mut Vec<Part>, owner: Owner) -> &mut Part {
    let at = parts.iter().position(|part| part.owner == owner).unwrap_or(parts.len());
    if at == parts.len() {
        parts.push(Part { owner, bytes: 0, left: Vec::new() });
    }
    &mut parts[at]
}

/// The user who answers for one: itself, or the one to whom it is subordinate (subuid(5)). Else a user would have as many
/// shares as there are subordinates.
pub fn answerable(uid: u32) -> u32 {
    // Without the file there are none.
    among(uid, &std::fs::read_to_string("/etc/subuid").unwrap_or_default(), &|name| {
        User::of(name).ok().map(|u| u.uid)
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

    fn item(owner: u32, bytes: u64) -> Item {
        Item { owner: Some(owner), bytes, writing: false, old: false }
    }

    fn writing(owner: u32, bytes: u64) -> Item {
        Item { writing: true, ..item(owner, bytes) }
    }

    #[test]
    fn a_flood_pushes_out_its_own() {
        // Root has four old ones; the other user's come, one after the other.
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
        // Two users have a half each; a third comes, and both have more than a third.
        let items = [item(0, 250), item(1, 250), item(0, 250), item(1, 250)];
        assert_eq!(going(&items, 1000, Some((Some(2), 300))), Some(vec![0, 1]));
        // Its own goes where it has less than a share, and nobody has more.
        let items = [item(0, 100), item(1, 100), writing(1, 300), writing(0, 300)];
        assert_eq!(going(&items, 1000, Some((Some(1), 250))), Some(vec![1]));
    }

    #[test]
    fn where_there_is_no_room_nothing_goes() {
        // The one who writes has all the room, and the other's is within its share.
        let items = [item(0, 100), writing(1, 300), writing(1, 300), item(1, 1)];
        assert_eq!(going(&items, 1000, Some((Some(1), 300))), Some(vec![3]));
        assert_eq!(going(&items, 800, Some((Some(1), 300))), None);
        // A quota that has become smaller is kept by what can go.
        assert_eq!(going(&items, 600, None), Some(vec![3, 0]));
        assert_eq!(going(&[writing(1, 300)], 100, None), Some(vec![]));
    }

    #[test]
    fn those_of_nobody_known_have_a_share_of_their_own() {
        let unknown = Item { owner: None, ..item(0, 100) };
        let items = [unknown, item(5, 600), unknown, unknown];
        assert_eq!(going(&items, 1000, Some((Some(5), 200))), Some(vec![1]));
        assert_eq!(going(&[unknown; 10], 1000, Some((Some(5), 200))), Some(vec![0, 1]));
    }

    #[test]
    fn what_is_too_old_goes_first() {
        let old = |owner| Item { old: true, ..item(owner, 100) };
        let items = [old(0), Item { writing: true, ..old(1) }, item(2, 900)];
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
