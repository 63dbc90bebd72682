// SPDX-License-Identifier: GPL-2.0
char LICENSE[] __attribute__((section("license"), used)) = "Dual MIT/GPL";
