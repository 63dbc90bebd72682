//! Names for pipelines. Vulkan gives them none, and the entry point of all of ggml's shaders is `main`: the name is a hash
//! of the shader's code, which is the same in every run of a build.

use handover::{Handles, Names};

pub struct Shaders {
    /// Names of shader modules and of pipelines, by handle.
    names: Handles,
    texts: Names,
}

impl Shaders {
    pub const fn new() -> Shaders {
        Shaders { names: Handles::new(), texts: Names::new() }
    }

    /// A shader module has this name.
    pub fn module(&mut self, module: u64, name: &[u8]) {
        let name = self.texts.address(name);
        self.names.set(module, name);
    }

    /// A pipeline is made of a module.
    pub fn pipeline(&mut self, pipeline: u64, module: u64) {
        let name = self.names.get(module).unwrap_or(0);
        self.names.set(pipeline, name);
    }

    /// Address of a pipeline's name; 0: it has none.
    pub fn name_of(&self, pipeline: u64) -> u64 {
        self.names.get(pipeline).unwrap_or(0)
    }
}

/// The name of a shader with this code.
pub fn name(code: &[u32]) -> [u8; 15] {
    // FNV-1a, by words.
    let hash =
        code.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, w| (h ^ u64::from(*w)).wrapping_mul(0x100_0000_01b3));
    let mut text = *b"shader 00000000";
    for (i, digit) in text.iter_mut().skip(7).enumerate() {
        let nibble = (hash >> (60 - 4 * i)) & 15;
        *digit = b"0123456789abcdef".get(nibble as usize).copied().unwrap_or(b'?');
    }
    text
}
