/** Open image files as RGB: upright, with transparent pixels on white. Equal to open_picture in Python. */
import { orientationOfWebP, turned } from './orientation.ts'
import type { Picture } from './preprocessing.ts'

export async function openPicture(file: Blob): Promise<Picture> {
  // Browsers turn images by their EXIF orientation, but not all do so for WebP.
  const orientation = orientationOfWebP(await file.arrayBuffer())
  let bitmap: ImageBitmap
  try {
    bitmap = await createImageBitmap(file, {
      imageOrientation: orientation === undefined ? 'from-image' : 'none',
      colorSpaceConversion: 'none',
      premultiplyAlpha: 'none', // decoders of WebP round premultiplied values otherwise than the canvas does
    })
  } catch {
    throw new Error('the browser cannot read this image: use a PNG or JPEG file.')
  }
  const { width, height } = bitmap
  const pen = contextOf(width, height)
  pen.fillStyle = 'white'
  pen.fillRect(0, 0, width, height)
  pen.drawImage(bitmap, 0, 0)
  bitmap.close()
  const { data } = pen.getImageData(0, 0, width, height)
  const rgb = new Uint8Array(3 * width * height)
  for (let i = 0; i < width * height; i++) rgb.set(data.subarray(4 * i, 4 * i + 3), 3 * i)
  return turned({ width, height, channels: 3, data: rgb }, orientation ?? 1)
}

/** The inverted image: networks for digits expect white on black. */
export function negative(picture: Picture): Picture {
  return { ...picture, data: picture.data.map((value) => 255 - value) }
}

/** Whether an image is mostly bright, like paper. */
export function isBright({ data }: Picture): boolean {
  return data.reduce((sum, value) => sum + value, 0) > 127 * data.length
}

export function show({ width, height, channels, data }: Picture, canvas: HTMLCanvasElement): void {
  Object.assign(canvas, { width, height })
  const image = new ImageData(width, height)
  for (let i = 0; i < width * height; i++)
    for (let c = 0; c < 4; c++) image.data[4 * i + c] = c === 3 ? 255 : data[i * channels + (channels === 3 ? c : 0)]!
  canvas.getContext('2d')!.putImageData(image, 0, 0)
}

export function contextOf(width: number, height: number): CanvasRenderingContext2D {
  const canvas = Object.assign(document.createElement('canvas'), { width, height })
  return canvas.getContext('2d', { willReadFrequently: true })!
}
