/** The same pictures and numbers as tests/service/test_vectors.py. */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import type { Preprocessing } from '../src/client_spec.ts'
import { preprocess } from '../src/preprocessing.ts'

interface Vector {
  name: string
  preprocessing: Preprocessing
  width: number
  height: number
  pixels: string
  values: string
}

const vectors: Vector[] = JSON.parse(readFileSync('test/vectors.json', 'utf8')).preprocessing

function bytes(base64: string): Uint8Array {
  return Uint8Array.from(Buffer.from(base64, 'base64'))
}

for (const { name, preprocessing, width, height, pixels, values } of vectors) {
  test(name, () => {
    const made = preprocess({ width, height, channels: 3, data: bytes(pixels) }, preprocessing)
    assert.deepEqual(made, new Float32Array(bytes(values).buffer))
  })
}
