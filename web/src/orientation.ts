/** EXIF orientation: 1 to 8, from upright to turned and mirrored. */
import type { Picture } from './preprocessing.ts'

const ORIENTATION = 0x0112
const SHORT = 3

/** The orientation of a WebP file, 1 if it has none; undefined for other files. */
export function orientationOfWebP(buffer: ArrayBuffer): number | undefined {
  const view = new DataView(buffer)
  const name = (at: number) => String.fromCharCode(...new Uint8Array(buffer, at, 4))
  if (buffer.byteLength < 12 || name(0) !== 'RIFF' || name(8) !== 'WEBP') return undefined
  let at = 12
  while (at + 8 <= buffer.byteLength) {
    const length = view.getUint32(at + 4, true)
    const end = at + 8 + length
    if (end > buffer.byteLength) return 1
    if (name(at) === 'EXIF') return orientationOfExif(new DataView(buffer, at + 8, length))
    at = end + (length % 2)
  }
  return 1
}

/** The orientation in the first directory of EXIF data, which is a TIFF file, perhaps after "Exif" and two zeros. */
function orientationOfExif(data: DataView): number {
  const start = data.byteLength >= 6 && data.getUint32(0) === 0x45786966 ? 6 : 0
  const exif = new DataView(data.buffer, data.byteOffset + start, data.byteLength - start)
  if (exif.byteLength < 8) return 1
  const little = exif.getUint16(0) === 0x4949
  const directory = exif.getUint32(4, little)
  if (directory + 2 > exif.byteLength) return 1
  const entries = exif.getUint16(directory, little)
  for (let i = 0; i < entries; i++) {
    const entry = directory + 2 + 12 * i
    if (entry + 12 > exif.byteLength) return 1
    if (exif.getUint16(entry, little) === ORIENTATION && exif.getUint16(entry + 2, little) === SHORT)
      return exif.getUint16(entry + 8, little)
  }
  return 1
}

/** The upright picture of one with this orientation. */
export function turned(picture: Picture, orientation: number): Picture {
  if (orientation < 2 || orientation > 8) return picture
  const { width: w, height: h, channels, data } = picture
  const [width, height] = orientation < 5 ? [w, h] : [h, w]
  const made = new Uint8Array(data.length)
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) {
      const across = orientation < 5 ? x : y // along the rows of the stored picture
      const down = orientation < 5 ? y : x
      const column = [2, 3, 7, 8].includes(orientation) ? w - 1 - across : across
      const row = [3, 4, 6, 7].includes(orientation) ? h - 1 - down : down
      const from = (row * w + column) * channels
      made.set(data.subarray(from, from + channels), (y * width + x) * channels)
    }
  return { width, height, channels, data: made }
}
