// Asks @cloud-copilot/iam-simulate for each verdict that `cargo verify` reached on what controllers asked of AWS (the file that is named,
// or target/verify/aws-rights.json) and tells where it differs. `sandbox/src/second_opinion.rs` installs and runs this.
//
// It also knows AWS's service authorization reference: which kinds of resources and which condition keys an action has. A misuse that is no
// request of AWS's at all (`arn:another:…`) is one that it cannot judge; AWS refuses it as well, but it does not count as agreed. Keys that
// an action does not have are told, too: a condition on such a key would never hold.

import { readFileSync } from 'node:fs'
import { runSimulation } from '@cloud-copilot/iam-simulate'

const file = process.argv[2] ?? new URL('../../../target/verify/aws-rights.json', import.meta.url)
const account = '123456789012'
// It takes parameters for resources with an account; AWS's own public ones have none. They get one, in policies and requests alike.
const text = readFileSync(file, 'utf8').replaceAll(/(arn:[^:"]*:ssm:[^:"]*):(:parameter)/g, `$1:${account}$2`)
const { policies, cases } = JSON.parse(text)
// A star in a request's ARN asks it about all resources; ours stands for one that is still to be made.
const MADE = '0123456789abcdef0'
// What it answers when the action is not done to such a resource at all.
const NO_SUCH_REQUEST = 'no.resource.types'
// The fewest misuses of each statement that it must have judged.
const MISUSES = 3
// Differences that are told one by one.
const TOLD = 12

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

// `misuse of STATEMENT: RULE`, as sandbox/src/iam/rights.rs words it.
const misuse = ({ about }) => /^misuse of ([^:]+): (.*)$/s.exec(about)
const told = { allowed: 0, denied: 0, malformed: 0, differed: [] }
const ignored = new Map()
const judged = new Map()
for (const one of cases) {
  const [, statement, rule] = misuse(one) ?? []
  if (statement && !judged.has(statement)) judged.set(statement, new Set())
  const answer = await judge(one)
  if (answer.resultType === 'error') {
    if (statement && answer.errors.message === NO_SUCH_REQUEST) told.malformed += 1
    else told.differed.push({ ...one, error: answer.errors.message, details: answer.errors.identityPolicyErrors })
    continue
  }
  const allowed = answer.overallResult === 'Allowed'
  if (allowed !== one.allowed) {
    told.differed.push({ ...one, other: answer.overallResult, ignored: answer.result?.ignoredContextKeys })
  } else {
    told[allowed ? 'allowed' : 'denied'] += 1
    judged.get(statement)?.add(rule)
  }
  for (const key of answer.result?.ignoredContextKeys ?? []) {
    const name = key.replace(/^(aws:(?:Request|Resource)Tag)\/.*/, '$1')
    ignored.set(`${one.request.action} ${name}`, (ignored.get(`${one.request.action} ${name}`) ?? 0) + 1)
  }
}
if (ignored.size) console.log('keys that an action does not have:', Object.fromEntries([...ignored].sort()))
for (const one of told.differed.slice(0, TOLD)) console.log(`differs: ${JSON.stringify(one)}`)
const few = [...judged].filter(([, rules]) => rules.size < MISUSES).map(([statement]) => statement)
if (few.length) console.log(`fewer than ${MISUSES} misuses were judged of: ${few.join(', ')}`)
const agreed = `agrees that ${told.allowed} are allowed and ${told.denied} are not`
console.log(`another evaluator ${agreed}; ${told.malformed} misuses are no requests of AWS's; ${told.differed.length} differ`)
process.exit(told.differed.length || few.length || !told.allowed || !told.denied ? 1 : 0)
