/**
 * Preprocessing of images, bit for bit equal to polynext/preprocessing.py.
 *
 * Python resizes with Pillow, and this file repeats its integer arithmetic: weights have 22 fractional bits, and rows are
 * resized and rounded to bytes before columns. Both sides are tested with test/vectors.json.
 */
import type { Preprocessing } from './client_spec.ts'

/** Bytes in rows, `channels` per pixel: one for grey, three for RGB. */
export interface Picture {
  width: number
  height: number
  channels: number
  data: Uint8Array
}

/** Resize, crop and normalise to (C, H, W). */
export function preprocess(picture: Picture, how: Preprocessing): Float32Array {
  return normalise(resized(coloured(picture, how.mean.length), how), how)
}

/** Convert to grey or RGB. Grey is 0.299 R + 0.587 G + 0.114 B, with 16 fractional bits. */
export function coloured(picture: Picture, channels: number): Picture {
  if (picture.channels === channels) return picture
  const { width, height, data } = picture
  const made = new Uint8Array(width * height * channels)
  for (let i = 0; i < width * height; i++) {
    if (channels === 3) made.fill(data[i]!, 3 * i, 3 * i + 3)
    else made[i] = (19595 * data[3 * i]! + 38470 * data[3 * i + 1]! + 7471 * data[3 * i + 2]! + 0x8000) >> 16
  }
  return { width, height, channels, data: made }
}

/** The network's input, as bytes. */
export function resized(picture: Picture, how: Preprocessing): Picture {
  let [width, height] = [how.resize, how.resize]
  if (how.crop === 'centre') {
    const shorter = Math.min(picture.width, picture.height)
    width = Math.floor((how.resize * picture.width) / shorter)
    height = Math.floor((how.resize * picture.height) / shorter)
  }
  const whole = resampled(picture, width, height, FILTERS[how.interpolation])
  return cropped(whole, how.size)
}

function normalise(picture: Picture, how: Preprocessing): Float32Array {
  const { width, height, channels, data } = picture
  const made = new Float32Array(width * height * channels)
  for (let c = 0; c < channels; c++) {
    const mean = Math.fround(Math.fround(how.mean[c]!) * 255)
    const scale = Math.fround(1 / Math.fround(Math.fround(how.std[c]!) * 255))
    for (let i = 0; i < width * height; i++)
      made[c * width * height + i] = Math.fround(data[i * channels + c]! - mean) * scale
  }
  return made
}

function cropped(picture: Picture, size: number): Picture {
  const { width, height, channels, data } = picture
  const left = roundHalfToEven((width - size) / 2)
  const top = roundHalfToEven((height - size) / 2)
  const made = new Uint8Array(size * size * channels)
  for (let y = 0; y < size; y++) {
    const start = ((top + y) * width + left) * channels
    made.set(data.subarray(start, start + size * channels), y * size * channels)
  }
  return { width: size, height: size, channels, data: made }
}

interface Filter {
  support: number
  weight: (x: number) => number
}

const FILTERS: Record<Preprocessing['interpolation'], Filter> = {
  bilinear: { support: 1, weight: (x) => (x < 1 ? 1 - x : 0) },
  bicubic: {
    support: 2,
    weight: (x) => {
      if (x < 1) return (1.5 * x - 2.5) * x * x + 1
      return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0
    },
  },
}

function resampled(picture: Picture, width: number, height: number, filter: Filter): Picture {
  const rows = width === picture.width ? picture : transposed(resampledColumns(transposed(picture), width, filter))
  return height === rows.height ? rows : resampledColumns(rows, height, filter)
}

const DIGITS = 2 ** 22

/** A picture of another height. */
function resampledColumns(picture: Picture, height: number, filter: Filter): Picture {
  const scale = picture.height / height
  const stretch = Math.max(scale, 1) // a smaller picture averages over all of a larger one
  const reach = filter.support * stretch
  const stride = picture.width * picture.channels
  const made = new Uint8Array(height * stride)
  for (let y = 0; y < height; y++) {
    const centre = (y + 0.5) * scale
    const first = Math.max(0, Math.trunc(centre - reach + 0.5))
    const end = Math.min(picture.height, Math.trunc(centre + reach + 0.5))
    const weights: number[] = []
    for (let k = first; k < end; k++) weights.push(filter.weight(Math.abs((k - centre + 0.5) * (1 / stretch))))
    const total = weights.reduce((sum, weight) => sum + weight, 0)
    const rounded = weights.map((weight) => roundHalfAway((weight / total) * DIGITS))
    for (let x = 0; x < stride; x++) {
      let sum = DIGITS / 2
      for (let k = 0; k < rounded.length; k++) sum += picture.data[(first + k) * stride + x]! * rounded[k]!
      made[y * stride + x] = Math.min(255, Math.max(0, Math.floor(sum / DIGITS)))
    }
  }
  return { ...picture, height, data: made }
}

function transposed({ width, height, channels, data }: Picture): Picture {
  const made = new Uint8Array(data.length)
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      for (let c = 0; c < channels; c++) made[(x * height + y) * channels + c] = data[(y * width + x) * channels + c]!
  return { width: height, height: width, channels, data: made }
}

function roundHalfAway(value: number): number {
  return value < 0 ? Math.ceil(value - 0.5) : Math.floor(value + 0.5)
}

/** Python's `round`. */
function roundHalfToEven(value: number): number {
  const below = Math.floor(value)
  if (value - below !== 0.5) return Math.round(value)
  return below % 2 === 0 ? below : below + 1
}
