import { defineConfig } from 'vite'

// A service that `npm run dev` passes requests on to: `polynext encrypted serve`.
const SERVICE = 'http://127.0.0.1:8000'

export default defineConfig({
  base: './', // a proxy may serve the page below any path
  build: {
    outDir: '../polynext/service/page',
    emptyOutDir: true,
    target: 'es2022',
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 1000,
  },
  worker: { format: 'es' },
  server: { proxy: { '/v1': SERVICE, '/docs': SERVICE, '/openapi.json': SERVICE } },
})
