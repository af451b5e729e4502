/** The client spec of a network: all that a client needs, and no weights. The limits are those of spec_limits.py. */
import {
  type Check,
  type Checked,
  COUNT,
  FINGERPRINT,
  flag,
  integer,
  LABEL,
  list,
  NAME,
  number,
  oneOf,
  orNull,
  require,
  SECONDS,
  table,
} from './checks.ts'

/** Normalised pixels are at most this large, by the limits of mean and std. Every value up to it can be encrypted. */
const LARGEST_VALUE = 2 ** 10
const MOST_SLOTS = 2 ** 15
/** The size of all evaluation keys, in bytes, that a browser makes and sends. */
const MOST_KEY_BYTES = 4 * 2 ** 30

const preprocessing = table({
  size: integer(1, 1024),
  resize: integer(1, 1024),
  crop: oneOf('centre', 'squash', 'drawing'),
  interpolation: oneOf('bicubic', 'bilinear'),
  mean: list(number(0, 1), 1, 3),
  std: list(number(1 / LARGEST_VALUE, LARGEST_VALUE), 1, 3),
})

export const networkSummary = table({
  name: NAME,
  fingerprint: FINGERPRINT,
  works_in_browser: flag,
  upload_bytes: COUNT,
  seconds: SECONDS,
})

const part = table({ name: NAME, step: orNull(integer(0, MOST_SLOTS)) })

const tables = table({
  name: NAME,
  fingerprint: FINGERPRINT,
  classes: list(LABEL, 1, MOST_SLOTS),
  preprocessing,
  browser_parameters: orNull(
    table({
      poly_modulus_degree: integer(2 ** 10, 2 ** 16),
      coeff_modulus_bits: list(integer(2, 60), 2, 64),
      input_scale: number(1, 2 ** 60),
    }),
  ),
  parts: list(part, 1, 4097),
  slots: table({
    image: list(integer(-1, 2 ** 20), 1, MOST_SLOTS),
    result: list(list(integer(0, MOST_SLOTS - 1), 1, MOST_SLOTS), 1, MOST_SLOTS),
  }),
  samples: list(NAME, 0, 100),
  largest_logit: number(0, 1e10),
  cost: table({ rotations: COUNT, plaintext_products: COUNT, ciphertext_products: COUNT, seconds: SECONDS }),
})

export type Preprocessing = Checked<typeof preprocessing>
export type NetworkSummary = Checked<typeof networkSummary>
export type Part = Checked<typeof part>
export type ClientSpec = Checked<typeof tables>

/** A client spec in which every number is within its limits, so that every picture can be encrypted. */
export const clientSpec: Check<ClientSpec> = (value, where) => {
  const spec = tables(value, where)
  const { size, resize, crop, mean, std } = spec.preprocessing
  require([1, 3].includes(mean.length) && mean.length === std.length, 'preprocessing', 'for grey or RGB pictures')
  const fits = crop === 'drawing' ? resize <= size && mean.length === 1 : size <= resize
  require(fits, 'preprocessing.size', 'one that the resize allows')
  const pixels = size * size * mean.length
  require(spec.slots.image.every((entry) => entry < pixels), 'slots.image', 'a list of pixels')
  require(spec.slots.result[0]!.length === spec.classes.length, 'slots.result', 'one slot for each class')
  if (spec.browser_parameters) {
    const { poly_modulus_degree: degree, coeff_modulus_bits: bits, input_scale } = spec.browser_parameters
    require((degree & (degree - 1)) === 0, 'the ring degree', 'a power of two')
    require(spec.slots.image.length === degree / 2, 'slots.image', 'a list of all slots')
    require(spec.slots.result.flat().every((slot) => slot < degree / 2), 'slots.result', 'a list of slots')
    require(spec.parts.every(({ step }) => (step ?? 0) < degree / 2), 'parts', 'a list of rotations')
    // The last prime is only in keys.
    const room = bits.slice(0, -1).reduce((sum, each) => sum + each, 0) - Math.log2(input_scale)
    require(room > Math.log2(LARGEST_VALUE) + 1, 'the modulus', 'long enough for every picture')
    const keyBytes = (bits.length - 1) * bits.length * degree * 8 // with a seed for the random half
    require(keyBytes * spec.parts.length <= MOST_KEY_BYTES, 'parts', `a list of keys of at most ${MOST_KEY_BYTES} bytes`)
  }
  return spec
}

/** The size of a ciphertext with all primes, which no answer exceeds. */
export function mostAnswerBytes({ browser_parameters }: ClientSpec): number {
  const { poly_modulus_degree: degree, coeff_modulus_bits: bits } = browser_parameters!
  return 1.01 * 2 * bits.length * degree * 8 + 2 ** 16
}

/** Put normalised pixels into slots: slot s gets entry `slots.image[s]`, or zero if there is none. */
export function pack(spec: ClientSpec, values: Float32Array): Float64Array {
  return Float64Array.from(spec.slots.image, (entry) => values[entry] ?? 0)
}

/** The logits in the slots of a decrypted answer. Logits beyond the limit may come from an overflow and are refused. */
export function unpack(spec: ClientSpec, slots: Float64Array): number[] {
  const logits = spec.slots.result[0]!.map((slot) => slots[slot] ?? Number.NaN)
  if (!logits.every((logit) => Math.abs(logit) <= spec.largest_logit))
    throw new Error('the logits are out of range: this picture is too unlike the training images.')
  return logits
}
