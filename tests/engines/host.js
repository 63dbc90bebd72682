// Runs a model in node by the addon of node-llama-cpp: node host.js ADDON MODEL TOKENS. Prints how often it decoded.
'use strict';
const path = require('path');
const [file, model, tokens] = process.argv.slice(2);
const addon = require(path.resolve(file));

// In the vocabulary of every generated model.
const tokenAt = (i) => 3 + ((37 * i) % 250);

async function main() {
    // Older addons have all in one file.
    if (addon.loadBackends) addon.loadBackends(path.dirname(path.resolve(file)));
    if (addon.init) await addon.init();
    const loaded = new addon.AddonModel(model, {gpuLayers: 0, useMmap: true});
    if (!(await loaded.init())) throw new Error(`${model} is not loaded`);
    const context = new addon.AddonContext(loaded, {contextSize: 256, batchSize: 64, sequences: 1, threads: 2});
    if (!(await context.init())) throw new Error('no context');
    let [at, calls] = [0, 0];
    const decode = async (n) => {
        context.initBatch(n);
        const ids = Uint32Array.from({length: n}, (_, i) => tokenAt(at + i));
        context.addToBatch(0, at, ids, Uint32Array.of(n - 1));
        await context.decodeBatch();
        at += n;
        calls += 1;
    };
    await decode(7);
    for (let i = 0; i < Number(tokens); i++) await decode(1);
    // The engine has printed dots without an end of line.
    console.log('\n' + JSON.stringify({calls}));
}

main().catch((e) => { console.error(e); process.exit(1); });
