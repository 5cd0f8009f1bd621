// Callers that lock and unlock as fast as they can, all in one process: that is how
// node is used.  A client gives run() a function open(info, number), which returns
// lock(name) and unlock(), both async; its command line and its answer are those of
// callers.c:
//
//     program CONNECT-INFO CALLERS SECONDS own|one|items DATABASE
'use strict';

const ITEMS = 100;
const WARM_UP = 200;

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// Takes one off an item's stock, by statements that are prepared once.
async function openWork(database) {
  const { Client } = require('pg');
  const options = Object.fromEntries(database.split(' ').map((word) => word.split('=')));
  const client = new Client({
    host: options.host, port: Number(options.port), user: options.user, database: options.dbname });
  await client.connect();
  return async (item) => {
    await client.query({ name: 'read', text: 'SELECT stock FROM plain_item WHERE id = $1', values: [item] });
    const answer = await client.query({
      name: 'write', text: 'UPDATE plain_item SET stock = stock - 1 WHERE id = $1 AND stock > 0', values: [item] });
    if (answer.rowCount !== 1) throw new Error('nothing was written');
  };
}

async function main(open) {
  const [info, count, seconds, mode, database] = process.argv.slice(2);
  const callers = Number(count);
  const latencies = [];
  const done = new Array(callers).fill(0);
  let ready = 0;
  let inside = 0;
  let violations = 0;
  let counting = false;
  let stopping = false;

  async function call(number) {
    const { lock, unlock } = await open(info, number);
    const work = mode === 'items' ? await openWork(database) : null;
    const job = async (name) => {
      const item = 1 + Math.floor(Math.random() * ITEMS);
      await lock(work ? `item:${item}` : name);
      if (name === 'one' && ++inside !== 1) violations++;
      if (work) await work(item);
      if (name === 'one') inside--;
      await unlock();
      done[number]++;
    };
    await job(`own:${number}`);
    const name = mode === 'one' ? 'one' : `own:${number}`;
    ready++;
    while (!stopping) {
      const start = performance.now();
      await job(name);
      if (counting) latencies.push(Math.round(1000 * (performance.now() - start)));
    }
  }

  const all = Promise.all(Array.from({ length: callers }, (_, number) => call(number)));
  all.catch(fail);
  while (ready < callers) await sleep(2);
  await sleep(WARM_UP);
  counting = true;
  const start = performance.now();
  const before = done.slice();
  await sleep(1000 * Number(seconds));
  const counted = done.map((jobs, number) => jobs - before[number]);
  const rate = sum(counted) / ((performance.now() - start) / 1000);
  counting = false;
  stopping = true;
  await all;
  latencies.sort((a, b) => a - b);
  const at = (part) => latencies[Math.floor(latencies.length * part)] || 0;
  const served = counted.filter((jobs) => jobs > 0).length;
  console.log(JSON.stringify({ rate, served, p50: at(0.5), p99: at(0.99), jobs: sum(done), violations }));
  process.exit(0);
}

function fail(error) {
  console.error(String(error));
  process.exit(1);
}

exports.run = (open) => main(open).catch(fail);
exports.hostAndPort = (info) => ({ host: info.split(':')[0], port: Number(info.split(':')[1]) });
