/** Draw bytes as an image, one square per byte. A ciphertext looks like noise. */

const SIDE = 48
/** SEAL's headers end before this byte. Words of 8 bytes follow. */
const [BODY, WORD] = [256, 8]

export function drawBytes(bytes: Uint8Array, canvas: HTMLCanvasElement): void {
  Object.assign(canvas, { width: SIDE, height: SIDE })
  const image = new ImageData(SIDE, SIDE)
  const style = getComputedStyle(canvas)
  const [dark, bright] = ['--noise-dark', '--noise-bright'].map((name) => rgb(style.getPropertyValue(name)))
  const places = randomPlaces(bytes)
  for (let i = 0; i < SIDE * SIDE; i++) {
    const word = BODY + WORD * Math.floor(i / places.length)
    const share = bytes[word + places[i % places.length]!]! / 255
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = dark![c]! + share * (bright![c]! - dark![c]!)
    image.data[4 * i + 3] = 255
  }
  canvas.getContext('2d')!.putImageData(image, 0, 0)
}

/** The bytes of a word that have all values. The highest bytes are 0 if the primes are shorter than a word. */
function randomPlaces(bytes: Uint8Array): number[] {
  const body = bytes.subarray(BODY, BODY + SIDE * SIDE)
  return Array.from({ length: WORD }, (_, place) => place).filter((place) =>
    body.some((byte, i) => i % WORD === place && byte >= 128),
  )
}

/** The channels of a computed colour, such as rgb(1, 2, 3). */
function rgb(colour: string): number[] {
  return (colour.match(/[\d.]+/g) ?? []).slice(0, 3).map(Number)
}
