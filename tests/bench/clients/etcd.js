// etcd's own Lock service, which queues and wakes in the server: each caller has a
// lease that outlives the run, as a Session of etcd's Go client keeps one; all share a
// connection.
'use strict';

const path = require('path');
const { promisify } = require('util');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const { run } = require('./callers.js');

const LEASE_SECONDS = 600;

function load(file) {
  return grpc.loadPackageDefinition(loader.loadSync(path.join(__dirname, file), { longs: String, keepCase: true }));
}

let calls = null;

function connect(info) {
  const credentials = grpc.credentials.createInsecure();
  const lease = new (load('etcd_lease.proto').etcdserverpb.Lease)(info, credentials);
  const lock = new (load('etcd_lock.proto').v3lockpb.Lock)(info, credentials);
  return {
    leaseGrant: promisify(lease.LeaseGrant.bind(lease)),
    lock: promisify(lock.Lock.bind(lock)),
    unlock: promisify(lock.Unlock.bind(lock)),
  };
}

run(async (info) => {
  calls = calls || connect(info);
  const lease = (await calls.leaseGrant({ TTL: LEASE_SECONDS })).ID;
  let key = null;
  return {
    lock: async (name) => { key = (await calls.lock({ name: Buffer.from('lock/' + name), lease })).key; },
    unlock: () => calls.unlock({ key }),
  };
});
