// node-redlock with one Redis: as it comes it asks again every 200 ms (with jitter), or
// so often as a sixth argument says in ms; without its limit of 10 times, which 64
// callers who want the same lock exceed.
'use strict';

const { Redis } = require('ioredis');
const { default: Redlock } = require('redlock');
const { run, hostAndPort } = require('./callers.js');

const retryDelay = process.argv[7] ? { retryDelay: Number(process.argv[7]), retryJitter: 0 } : {};
let redlock = null;

run(async (info) => {
  redlock = redlock || new Redlock([new Redis(hostAndPort(info))], { retryCount: -1, ...retryDelay });
  let held = null;
  return {
    lock: async (name) => { held = await redlock.acquire(['redlock:' + name], 30000); },
    unlock: async () => { await held.release(); },
  };
});
