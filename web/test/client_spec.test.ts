/** Mutated client specs from tests/service/test_hostile.py, one in each line: usable, or refused by one message. */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { PublishedError } from '../src/checks.ts'
import { clientSpec, pack, unpack } from '../src/client_spec.ts'
import { preprocess } from '../src/preprocessing.ts'

const file = process.env['DESCRIPTIONS']

test('mutated client specs', { skip: !file }, () => {
  const picture = { width: 30, height: 20, channels: 3, data: new Uint8Array(1800).map((_, i) => i) }
  let [refused, accepted] = [0, 0]
  for (const line of readFileSync(file!, 'utf8').trim().split('\n')) {
    let spec
    try {
      spec = clientSpec(JSON.parse(line), 'description')
    } catch (error) {
      // Python writes NaN and infinity, which JSON does not have.
      assert(error instanceof PublishedError || error instanceof SyntaxError, String(error))
      assert(error.message.length < 300)
      refused++
      continue
    }
    const slots = pack(spec, preprocess(picture, spec.preprocessing))
    assert(slots.every((value) => Math.abs(value) <= 1024))
    spec.largest_logit = Infinity
    assert.equal(unpack(spec, slots).length, spec.classes.length)
    accepted++
  }
  console.log(`${refused} refused, ${accepted} accepted`)
})
