// Asks @cloud-copilot/iam-simulate for each verdict that `cargo verify` reached (target/verify/aws-rights.json) and tells where it differs.
//
// It also knows AWS's service authorization reference: which kinds of resources and which condition keys an action has. A misuse that is no
// request of AWS's at all (`arn:another:…`) is one that it refuses to judge; that counts as refused. Keys that an action does not have are
// told, too: a condition on such a key would never hold.

import { readFileSync } from 'node:fs'
import { runSimulation } from '@cloud-copilot/iam-simulate'

const file = process.argv[2] ?? new URL('../../../target/verify/aws-rights.json', import.meta.url)
const account = '123456789012'
// It takes parameters for resources with an account; AWS's own public ones have none. They get one, in policies and requests alike.
const text = readFileSync(file, 'utf8').replaceAll(/(arn:[^:"]*:ssm:[^:"]*):(:parameter)/g, `$1:${account}$2`)
const { policies, cases } = JSON.parse(text)
// A star in a request's ARN asks it about all resources; ours stands for one that is still to be made.
const MADE = '0123456789abcdef0'

async function judge({ policy, without, request }) {
  const documents = policies[policy].map((document) => ({
    ...document,
    Version: document.Version ?? '2012-10-17',
    Statement: document.Statement.filter((statement) => statement.Sid !== without),
  }))
  return await runSimulation({
    request: {
      principal: `arn:aws:iam::${account}:role/KarpControllerRole`,
      action: request.action,
      resource: { resource: request.resource.replace(/\/\*$/, `/${MADE}`), accountId: request.resource.split(':')[4] || account },
      contextVariables: request.context,
    },
    identityPolicies: documents.map((policy, place) => ({ name: `policy-${place}`, policy })),
    serviceControlPolicies: [],
    resourceControlPolicies: [],
  }, {})
}

const told = { agreed: 0, malformed: 0, differed: [] }
const ignored = new Map()
for (const one of cases) {
  const answer = await judge(one)
  const allowed = answer.overallResult === 'Allowed'
  if (answer.resultType === 'error' && (one.allowed || !one.about.startsWith('misuse'))) {
    told.differed.push({ ...one, error: answer.errors.message, details: answer.errors.identityPolicyErrors })
  } else if (answer.resultType === 'error') {
    told.malformed += 1
  } else if (allowed === one.allowed) {
    told.agreed += 1
  } else {
    told.differed.push({ ...one, other: answer.overallResult, ignored: answer.result?.ignoredContextKeys })
  }
  for (const key of answer.result?.ignoredContextKeys ?? []) {
    const name = key.replace(/^(aws:(?:Request|Resource)Tag)\/.*/, '$1')
    ignored.set(`${one.request.action} ${name}`, (ignored.get(`${one.request.action} ${name}`) ?? 0) + 1)
  }
}
for (const one of told.differed) console.log(JSON.stringify(one))
console.log(`${cases.length} cases: ${told.agreed} agreed, ${told.malformed} misuses are no requests at all, ${told.differed.length} differ`)
if (ignored.size) console.log('keys that an action does not have:', Object.fromEntries([...ignored].sort()))
process.exit(told.differed.length || !cases.length ? 1 : 0)
