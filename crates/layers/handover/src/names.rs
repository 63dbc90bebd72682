//! Names of kernels, kept in place for as long as the process lives, and the handles that have them.

/// Bytes of a name, its end included; a longer one is cut. Names of CUDA's kernels are those of C++ templates.
pub const NAME: usize = 256;
/// Names and handles of one process; ggml-opencl has some 400 kernels.
const NAMES: usize = 2048;
const HANDLES: usize = 4096;

pub struct Names {
    text: [[u8; NAME]; NAMES],
    len: usize,
}

impl Names {
    pub const fn new() -> Names {
        Names { text: [[0; NAME]; NAMES], len: 0 }
    }

    /// Address of a text that equals `name`; 0: there is no room for another.
    pub fn address(&mut self, name: &[u8]) -> u64 {
        let mut text = [0; NAME];
        let cut = name.iter().take(NAME - 1).take_while(|c| **c != 0);
        text.iter_mut().zip(cut).for_each(|(to, from)| *to = *from);
        let known = self.text.iter().take(self.len).position(|t| *t == text);
        let at = known.unwrap_or(self.len);
        let Some(place) = self.text.get_mut(at) else { return 0 };
        *place = text;
        self.len = self.len.max(at + 1);
        core::ptr::from_ref(place) as u64
    }
}

impl Default for Names {
    fn default() -> Self {
        Names::new()
    }
}

/// Handles, each with a number: a table with open addressing.
pub struct Handles {
    slots: [(u64, u64); HANDLES],
}

impl Handles {
    pub const fn new() -> Handles {
        Handles { slots: [(0, 0); HANDLES] }
    }

    /// Places of a handle in the order in which they are tried.
    fn places(handle: u64) -> impl Iterator<Item = usize> {
        let first = (handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        (0..HANDLES).map(move |i| first.wrapping_add(i) % HANDLES)
    }

    pub fn get(&self, handle: u64) -> Option<u64> {
        for at in Handles::places(handle) {
            match self.slots.get(at) {
                Some(&(h, value)) if h == handle => return Some(value),
                Some((0, _)) | None => return None,
                Some(_) => {}
            }
        }
        None
    }

    /// Without room for another handle, it is not kept.
    pub fn set(&mut self, handle: u64, value: u64) {
        for at in Handles::places(handle) {
            match self.slots.get_mut(at) {
                Some(slot) if slot.0 == handle || slot.0 == 0 => {
                    *slot = (handle, value);
                    return;
                }
                _ => {}
            }
        }
    }
}

impl Default for Handles {
    fn default() -> Self {
        Handles::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_have_one_address() {
        let mut names = Box::new(Names::new());
        let add = names.address(b"kernel_add");
        let mul = names.address(b"kernel_mul\0behind its end");
        assert_ne!(add, mul);
        assert_eq!((names.address(b"kernel_add"), names.address(b"kernel_mul")), (add, mul));
        // A long name is cut, and ends.
        assert_eq!(names.address(&[b'x'; 2 * NAME]), names.address(&[b'x'; NAME - 1]));
    }

    #[test]
    fn without_room_a_name_has_no_address() {
        let mut names = Box::new(Names::new());
        let all: Vec<u64> = (0..NAMES + 5).map(|i| names.address(format!("k{i}").as_bytes())).collect();
        assert!(all[..NAMES].iter().all(|a| *a != 0) && all[NAMES..].iter().all(|a| *a == 0));
        assert_eq!(names.address(b"k7"), all[7]);
    }

    #[test]
    fn handles_can_be_set_again_and_fill_up() {
        let mut handles = Box::new(Handles::new());
        for h in 1..=HANDLES as u64 + 9 {
            handles.set(h << 12, h);
        }
        assert_eq!(
            (handles.get(1 << 12), handles.get(5), handles.get((HANDLES as u64 + 9) << 12)),
            (Some(1), None, None)
        );
        handles.set(1 << 12, 70);
        assert_eq!(handles.get(1 << 12), Some(70));
    }
}
