/**
 * Checks of what a server publishes, which is not trusted: the type of every value, and limits on every number, text and
 * list. A check returns the value without unknown fields, or throws one message.
 */

export type Check<Value> = (value: unknown, where: string) => Value
export type Checked<Function> = Function extends Check<infer Value> ? Value : never

export class PublishedError extends Error {
  constructor(where: string, expected: string) {
    super(`the server published invalid data: ${where} is not ${expected}.`)
  }
}

export function number(least: number, most: number): Check<number> {
  return (value, where) => {
    if (typeof value === 'number' && value >= least && value <= most) return value
    throw new PublishedError(where, `a number from ${least} to ${most}`)
  }
}

export function integer(least: number, most: number): Check<number> {
  return (value, where) => {
    if (Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most) return value as number
    throw new PublishedError(where, `a whole number from ${least} to ${most}`)
  }
}

export function text(pattern: RegExp): Check<string> {
  return (value, where) => {
    if (typeof value === 'string' && value.length <= 10_000 && pattern.test(value)) return value
    throw new PublishedError(where, 'a string in the expected format')
  }
}

export function oneOf<Value extends string>(...values: Value[]): Check<Value> {
  return (value, where) => {
    if (values.includes(value as Value)) return value as Value
    throw new PublishedError(where, `one of ${values.join(', ')}`)
  }
}

export const flag: Check<boolean> = (value, where) => {
  if (typeof value === 'boolean') return value
  throw new PublishedError(where, 'true or false')
}

export function orNull<Value>(check: Check<Value>): Check<Value | null> {
  return (value, where) => (value === null ? null : check(value, where))
}

export function list<Value>(check: Check<Value>, least: number, most: number): Check<Value[]> {
  return (value, where) => {
    if (!Array.isArray(value) || value.length < least || value.length > most)
      throw new PublishedError(where, `a list of ${least} to ${most} entries`)
    return value.map((entry, i) => check(entry, `${where}.${i}`))
  }
}

export function table<Value extends object>(fields: { [Name in keyof Value]: Check<Value[Name]> }): Check<Value> {
  return (value, where) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new PublishedError(where, 'a table')
    const given = value as Record<string, unknown>
    const entries = Object.entries<Check<unknown>>(fields).map(([name, check]) => [name, check(given[name], `${where}.${name}`)])
    return Object.fromEntries(entries) as Value
  }
}

export function require(condition: boolean, where: string, expected: string): void {
  if (!condition) throw new PublishedError(where, expected)
}

export const NAME = text(/^[A-Za-z0-9._-]{1,64}$/)
export const ID = text(/^[0-9a-f]{32}$/)
export const FINGERPRINT = text(/^[0-9a-f]{16}$/)
/** A text without control characters. */
export const LABEL = text(/^[^\x00-\x1f\x7f-\x9f]{1,100}$/)
export const COUNT = integer(0, 2 ** 50)
export const SECONDS = number(0, 1e12)
