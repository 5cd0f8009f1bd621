// The Mutex of redis-semaphore, as it comes: it asks again every 10 ms; without its
// limit of 10 s.
'use strict';

const { Redis } = require('ioredis');
const { Mutex } = require('redis-semaphore');
const { run, hostAndPort } = require('./callers.js');

let redis = null;

run(async (info) => {
  redis = redis || new Redis(hostAndPort(info));
  let mutex = null;
  return {
    lock: async (name) => {
      mutex = new Mutex(redis, name, { lockTimeout: 30000, acquireTimeout: Infinity });
      await mutex.acquire();
    },
    unlock: () => mutex.release(),
  };
});
