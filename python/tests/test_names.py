"""Names of ops: the same placeholders as in crates/ggml/src/names.rs."""

import unittest

from profinfer.names import fold


class Names(unittest.TestCase):
    def test_numbers_of_layers(self):
        for name, pattern, layer in (
                ("Qcur-3", "Qcur-{L}", 3), ("attn_norm-0 (view)", "attn_norm-{L} (view)", 0),
                ("Kcur-15 (reshaped) (permuted)", "Kcur-{L} (reshaped) (permuted)", 15),
                ("blk.10.ffn_down_exps.weight", "blk.{L}.ffn_down_exps.weight", 10),
                ("enc.blk.7.attn_q.weight", "enc.blk.{L}.attn_q.weight", 7), ("cache_k_l3", "cache_k_l{L}", 3),
                ("cache_k_l3 (view) (copy of Kcur-3)", "cache_k_l{L} (view) (copy of Kcur-{L})", 3),
                ("CPU#blk.3.ffn_up.weight#1", "CPU#blk.{L}.ffn_up.weight#1", 3),
                ("Vulkan0#node_5#0", "Vulkan0#node_{N}#0", None), ("leaf_4", "leaf_{N}", None),
                ("node_57 (view)", "node_{N} (view)", None)):
            self.assertEqual(fold(name), (pattern, layer), name)

    def test_other_numbers_stay(self):
        for name in ("", "result_output", "-3", "f16-kv-3x", "Qcur-", "my_node_57", "node_5x", "subblk.3.attn", "blk.3",
                     "cache_k_lx", "cache__l3", "ln1.weight", "ggml-99999999999", "\u00e9-3\u00e9", "x-\u0663"):
            self.assertEqual(fold(name), (name, None), name)


if __name__ == "__main__":
    unittest.main()
