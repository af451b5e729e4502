/** The client spec of a network: all that a client needs, and no weights. */

export interface Preprocessing {
  size: number
  resize: number
  crop: 'centre' | 'squash' | 'drawing'
  interpolation: 'bicubic' | 'bilinear'
  mean: number[]
  std: number[]
}

export interface NetworkSummary {
  name: string
  fingerprint: string
  works_in_browser: boolean
  classes: string[]
  image_shape: number[]
  upload_bytes: number
  seconds: number
}

export interface Part {
  name: string
  step: number | null
}

export interface ClientSpec {
  name: string
  fingerprint: string
  classes: string[]
  preprocessing: Preprocessing
  browser_parameters: { poly_modulus_degree: number; coeff_modulus_bits: number[]; input_scale: number } | null
  parts: Part[]
  slots: { image: number[]; result: number[][] }
  samples: string[]
  largest_logit: number
  cost: { rotations: number; plaintext_products: number; ciphertext_products: number; seconds: number }
}

/** Put normalised pixels into slots: slot s gets entry `slots.image[s]`, or zero if there is none. */
export function pack(spec: ClientSpec, values: Float32Array): Float64Array {
  return Float64Array.from(spec.slots.image, (entry) => values[entry] ?? 0)
}

/** The logits in the slots of a decrypted answer. Logits beyond the limit may come from an overflow and are refused. */
export function unpack(spec: ClientSpec, slots: Float64Array): number[] {
  const logits = (spec.slots.result[0] ?? []).map((slot) => slots[slot] ?? Number.NaN)
  if (!logits.every((logit) => Math.abs(logit) <= spec.largest_logit))
    throw new Error('the logits are out of range: this picture is too unlike the training images.')
  return logits
}
