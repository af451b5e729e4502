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

const LARGEST_PROPORTION = 100

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
  const [longer, shorter] = [Math.max(picture.width, picture.height), Math.min(picture.width, picture.height)]
  if (longer > LARGEST_PROPORTION * shorter)
    throw new Error(`the picture's longer edge is more than ${LARGEST_PROPORTION} times the shorter one.`)
  if (how.crop === 'drawing') return centred(picture, how)
  let [width, height] = [how.resize, how.resize]
  if (how.crop === 'centre') {
    width = Math.floor((how.resize * picture.width) / shorter)
    height = Math.floor((how.resize * picture.height) / shorter)
  }
  const whole = resampled(picture, width, height, FILTERS[how.interpolation])
  return cropped(whole, how.size)
}

/** A pixel of at least this value is part of a drawing. */
const INK = 16

/** A grey drawing, resized to fit its box and moved so that the central pixel contains its centre of mass. */
function centred(picture: Picture, how: Preprocessing): Picture {
  const made = { width: how.size, height: how.size, channels: 1, data: new Uint8Array(how.size ** 2) }
  const [left, right] = inked(transposed(picture))
  const [top, bottom] = inked(picture)
  if (right === 0) return made
  const longer = Math.max(right - left, bottom - top)
  const shrunk = (length: number): number => Math.max(1, Math.floor((how.resize * length) / longer))
  const box = boxOf(picture, left, top, right - left, bottom - top)
  const drawing = resampled(box, shrunk(box.width), shrunk(box.height), FILTERS[how.interpolation])
  const corner = (turned: Picture): number =>
    Math.min(Math.max(Math.floor(how.size / 2) - centreOfMass(turned), 0), how.size - turned.height)
  const [x, y] = [corner(transposed(drawing)), corner(drawing)]
  for (let row = 0; row < drawing.height; row++) {
    const line = drawing.data.subarray(row * drawing.width, (row + 1) * drawing.width)
    made.data.set(line, (y + row) * how.size + x)
  }
  return made
}

/** The first row of a grey picture with ink, and the row after the last one; zeros if there is no ink. */
function inked({ width, data }: Picture): [first: number, end: number] {
  const first = data.findIndex((value) => value >= INK)
  const last = data.findLastIndex((value) => value >= INK)
  return first < 0 ? [0, 0] : [Math.floor(first / width), Math.floor(last / width) + 1]
}

/** The row of a grey picture that contains its centre of mass. */
function centreOfMass({ width, data }: Picture): number {
  let [mass, moment] = [0, 0]
  for (const [i, value] of data.entries()) {
    mass += value
    moment += value * Math.floor(i / width)
  }
  return Math.floor((2 * moment + mass) / (2 * mass))
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
  const left = roundHalfToEven((picture.width - size) / 2)
  const top = roundHalfToEven((picture.height - size) / 2)
  return boxOf(picture, left, top, size, size)
}

function boxOf(picture: Picture, left: number, top: number, width: number, height: number): Picture {
  const { channels, data } = picture
  const made = new Uint8Array(width * height * channels)
  for (let y = 0; y < height; y++) {
    const start = ((top + y) * picture.width + left) * channels
    made.set(data.subarray(start, start + width * channels), y * width * channels)
  }
  return { width, height, channels, data: made }
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
